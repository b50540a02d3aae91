#include "sim/recorded.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "sim/group_work.h"
#include "sim/recorded_documents.h"

namespace distca {
namespace {

constexpr int64_t kDevicesOfNode = 8;
constexpr int64_t kNanoBatches = 2;
// Times alone can't tell. But runs held 128K tokens a rank, whose activations need more than a device has
// (sim/memory.h), and matrix products would reach .48 of peak without it where they reach .74 with it.
constexpr Recompute kRecompute = Recompute::kSelective;
constexpr int64_t kDraws = 16, kManyDraws = 100;  // few iterations differ more from draw to draw

std::vector<std::string> split(std::string_view line, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    parts.emplace_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// One line's values by column.
class RowReader {
 public:
  RowReader(const RecordedRow& row, std::string place) : row_(row), place_(std::move(place)) {}

  const std::string* find(const std::string& column) const {
    for (const auto& [name, value] : row_.columns) {
      if (name == column) return &value;
    }
    return nullptr;
  }
  const std::string& text(const std::string& column) const {
    const std::string* value = find(column);
    DISTCA_CHECK_INPUT(value != nullptr, "{}: there is no column {}", place_, column);
    return *value;
  }
  int64_t count(const std::string& column) const {
    const std::string& value = text(column);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    DISTCA_CHECK_INPUT(error == std::errc() && end == value.data() + value.size() && number >= 1,
                       "{}: {} is '{}': it must be a whole number of at least 1", place_, column, value);
    return number;
  }
  double milliseconds(const std::string& column) const {
    const std::string& value = text(column);
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    DISTCA_CHECK_INPUT(error == std::errc() && end == value.data() + value.size() && number > 0,
                       "{}: {} is '{}': it must be a number above 0", place_, column, value);
    return number;
  }

 private:
  const RecordedRow& row_;
  std::string place_;
};

void check(const RecordedRow& row, const std::string& place) {
  DISTCA_CHECK_INPUT(row.policy == "cad" || row.policy == "wlb" || row.policy == "cp",
                     "{}: policy '{}' is neither cad, wlb nor cp", place, row.policy);
  DISTCA_CHECK_INPUT(row.dataset == "wlbllm" || row.dataset == "prolong",
                     "{}: dataset '{}' is neither wlbllm nor prolong", place, row.dataset);
  DISTCA_CHECK_INPUT(row.nodes % (row.cp * row.pp) == 0, "{}: {} nodes are not a multiple of cp {} × pp {}",
                     place, row.nodes, row.cp, row.pp);
}

RecordedRow read_row(RecordedRow row, const std::string& place) {
  const RowReader reader(row, place);
  row.model = reader.text("model");
  row.policy = reader.text("policy");
  row.dataset = reader.text("dataset");
  row.nodes = reader.count("nodes");
  row.batch = reader.count("batch");
  row.micro_batches = reader.count("microbatches");
  row.chunk_tokens = reader.count("num_tokens");
  row.cp = reader.count("cp");
  row.pp = reader.count("pp");
  row.samples = reader.count("samples");
  if (reader.find("ms") != nullptr) row.ms = reader.milliseconds("ms");
  check(row, place);
  return row;
}

IterationWork balanced_work(const RecordedRow& row, const std::vector<int64_t>& documents,
                            double startup_keys) {
  const auto ranks = static_cast<double>(row.nodes / row.pp);
  double tokens = 0;
  for (const int64_t length : documents) tokens += static_cast<double>(length);
  return {{{tokens / ranks, whole_attention(documents, startup_keys) / ranks,
            tokens / ranks * static_cast<double>(row.cp - 1)}}};
}

IterationWork iteration_work(const RecordedRow& row, const std::vector<int64_t>& documents,
                             double startup_keys) {
  if (row.policy == "cad" || row.pp > 1) return balanced_work(row, documents, startup_keys);
  const auto cut = row.policy == "cp" ? cut_by_sequence : cut_by_document;
  IterationWork work;
  for (const GroupWork& group : cut(documents, row.nodes / row.cp, row.cp, startup_keys)) {
    work.groups.push_back({group.tokens, group.busiest(), group.gathered});
  }
  return work;
}

}  // namespace

std::vector<RecordedRow> parse_recorded(std::string_view text, const std::string& origin) {
  std::vector<std::string> names;
  std::vector<RecordedRow> rows;
  int64_t number = 0;
  for (std::string line : split(text, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> values = split(line, '\t');
    if (names.empty()) {
      names = std::move(values);
      continue;
    }
    const std::string place = format("{}:{}", origin, number);
    DISTCA_CHECK_INPUT(values.size() == names.size(), "{}: {} values for {} columns", place, values.size(),
                       names.size());
    RecordedRow row;
    for (size_t i = 0; i < names.size(); ++i) row.columns.emplace_back(names[i], std::move(values[i]));
    rows.push_back(read_row(std::move(row), place));
  }
  DISTCA_CHECK_INPUT(!rows.empty(), "{}: there are no rows", origin);
  return rows;
}

const std::vector<int64_t>& RecordedDraws::documents(Distribution distribution, int64_t chunk_tokens,
                                                     int64_t draw) {
  std::vector<int64_t>& documents = documents_[{distribution, chunk_tokens, draw}];
  if (documents.empty()) {
    documents = recorded_documents(distribution, chunk_tokens, static_cast<uint64_t>(draw));
  }
  return documents;
}

RecordedWork RecordedDraws::work_of(const RecordedRow& row, double startup_keys) {
  RecordedWork work;
  const int64_t draws = row.samples < 10 ? kManyDraws : kDraws;
  const int64_t chunks = kNanoBatches * row.batch * row.micro_batches;
  for (int64_t draw = 0; draw < draws; ++draw) {
    ChunkPacker packer(documents(distribution_named(row.dataset), row.chunk_tokens, draw), row.chunk_tokens);
    std::vector<IterationWork>& iterations = work.draws.emplace_back();
    for (int64_t i = 0; i < row.samples; ++i) {
      iterations.push_back(iteration_work(row, packer.next(chunks), startup_keys));
    }
  }
  return work;
}

RecordedPrediction predict_recorded(const RecordedRow& row, const RecordedWork& work, const ModelShape& model,
                                    const DeviceProfile& profile) {
  const StepCosts costs = step_costs(model, profile, kDevicesOfNode, row.pp, kRecompute);
  const double attention =
      costs.attention() * (row.policy == "cad" && row.pp == 1 ? 1 + profile.fit.planner_excess : 1);
  const double gather = row.policy == "cad" ? 0 : costs.gather();
  const auto micro_batches = static_cast<double>(row.micro_batches), stages = static_cast<double>(row.pp);
  const double layers =
      static_cast<double>(model.layers) / stages * (micro_batches + stages - 1) / micro_batches;
  std::vector<double> means;
  for (const std::vector<IterationWork>& iterations : work.draws) {
    double sum = 0;
    for (const IterationWork& iteration : iterations) {
      double slowest = 0;
      for (const IterationWork::Group& group : iteration.groups) {
        slowest = std::max(slowest, group.tokens * costs.layer_per_token() + group.attention * attention +
                                        group.gathered * gather);
      }
      sum += layers * slowest + costs.update;
    }
    means.push_back(1e3 * sum / static_cast<double>(iterations.size()));
  }
  RecordedPrediction prediction;
  for (const double mean : means) prediction.ms += mean / static_cast<double>(means.size());
  for (const double mean : means) prediction.spread_ms += (mean - prediction.ms) * (mean - prediction.ms);
  prediction.spread_ms = std::sqrt(prediction.spread_ms / static_cast<double>(means.size() - 1));
  return prediction;
}

std::vector<RecordedPrediction> predict_recorded(const std::vector<RecordedRow>& rows,
                                                 const ModelLookup& model_of, const DeviceProfile& profile) {
  RecordedDraws draws;
  std::vector<RecordedPrediction> predictions;
  for (const RecordedRow& row : rows) {
    predictions.push_back(predict_recorded(row, draws.work_of(row, profile.fit.attention_startup_keys),
                                           model_of(row.model), profile));
  }
  return predictions;
}

}  // namespace distca
