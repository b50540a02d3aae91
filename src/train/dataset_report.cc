#include "train/dataset_report.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "plan/task.h"
#include "train/rank_rows.h"

namespace distca {
namespace {

/// 0 → 0, 1 → 1, 2–3 → 2, 4–7 → 3, …
size_t bin_of(int64_t length) {
  return std::bit_width(static_cast<uint64_t>(length));
}

LengthBin empty_bin(size_t index) {
  if (index == 0) return {};
  LengthBin bin;
  bin.least = int64_t{1} << (index - 1);
  bin.most = 2 * bin.least - 1;
  return bin;
}

/// Max ÷ mean of the ranks' causal pairs, each rank computing the queries it is home to.
double load_max_over_mean(const Layout& layout) {
  std::vector<int64_t> loads(static_cast<size_t>(layout.ranks));
  int64_t total = 0;
  for (const Shard& shard : layout.shards) {
    const int64_t load = pairs(Task{shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home});
    loads[static_cast<size_t>(shard.home)] += load;
    total += load;
  }
  const int64_t most = *std::max_element(loads.begin(), loads.end());
  return static_cast<double>(most) * layout.ranks / static_cast<double>(total);
}

}  // namespace

LengthReport report_lengths(const TokenSource& source) {
  LengthReport report;
  report.documents = source.documents;
  std::vector<LengthBin> bins;
  for (int64_t document = 0; document < source.documents; ++document) {
    const int64_t length = source.length(document);
    while (bins.size() <= bin_of(length)) bins.push_back(empty_bin(bins.size()));
    LengthBin& bin = bins[bin_of(length)];
    ++bin.documents;
    bin.tokens += length;
    bin.pairs += static_cast<double>(length) * static_cast<double>(length + 1) / 2;
    report.tokens += length;
    if (length > report.longest) {
      report.longest = length;
      report.longest_document = document;
    }
  }
  const auto first =
      std::find_if(bins.begin(), bins.end(), [](const LengthBin& bin) { return bin.documents > 0; });
  report.bins.assign(first, bins.end());
  return report;
}

SkewReport report_skew(const TokenSource& source, BatchInputs inputs, int32_t ranks, int64_t most_steps) {
  DISTCA_CHECK_INPUT(ranks > 0, "{} ranks can't hold a batch", ranks);
  DISTCA_CHECK_INPUT(inputs.micro_batches > 0 && inputs.nano_batches > 0,
                     "a batch of {} · {} nano-batches has none", inputs.micro_batches, inputs.nano_batches);
  inputs.context = inputs.rows();
  inputs.split_documents = true;
  BatchStream stream(source, inputs);
  SkewReport report;
  report.split = find_long_documents(source, inputs.context).count;
  int64_t rows = 0, padding = 0;
  double sum = 0;
  while (report.steps < most_steps && (report.steps == 0 || stream.state().epoch == 0)) {
    const GlobalBatch batch = stream.next();
    ++report.steps;
    rows += batch.tokens() + batch.padding();
    padding += batch.padding();
    for (const NanoBatch& nano_batch : batch.nano_batches) {
      if (nano_batch.tokens() == 0) continue;
      const double ratio = load_max_over_mean(layout_of(nano_batch, batch.rows, ranks));
      sum += ratio;
      report.worst = std::max(report.worst, ratio);
      ++report.nano_batches;
    }
  }
  report.mean = report.nano_batches > 0 ? sum / static_cast<double>(report.nano_batches) : 0;
  report.padding = rows > 0 ? static_cast<double>(padding) / static_cast<double>(rows) : 0;
  return report;
}

}  // namespace distca
