#include "sim/recorded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/check.h"
#include "base/json.h"
#include "plan/profile.h"
#include "sim/group_work.h"
#include "sim/recorded_documents.h"
#include "sim/recorded_report.h"

namespace distca {
namespace {

const ModelShape kModel34b = {"34b", 8192, 48, 64, 8, 128, 22016, 32000, false};

ModelShape model_of(const std::string&) {
  return kModel34b;
}

std::string shared_file(const std::string& name) {
  return DISTCA_SOURCE_DIR "/../shared/data/" + name;
}

constexpr char kHeader[] =
    "model\tnodes\tbatch\tmicrobatches\tnum_tokens\tpolicy\tcp\tpp\tdataset\tsamples\tms\n";

TEST(RecordedDocuments, LongOnesAreRepeatedAndShortOnesThinned) {
  // 47 of 77,932 documents are long (doc_length_quantiles.tsv); each comes four times, 30% of them as a
  // chunk.
  const std::vector<int64_t> documents = recorded_documents(Distribution::kProlong, 131072, 5);
  const auto first_short =
      std::find_if(documents.begin(), documents.end(), [](int64_t length) { return length < 65536; });
  const int64_t count = first_short - documents.begin();
  EXPECT_NEAR(static_cast<double>(count), 4 * 47, 8);
  EXPECT_TRUE(std::all_of(first_short, documents.end(), [](int64_t length) { return length < 65536; }))
      << "long documents come first";
  EXPECT_NEAR(static_cast<double>(documents.end() - first_short), 77885 / 2.0, 5 * std::sqrt(77885 / 4.0));
  EXPECT_EQ(std::count(documents.begin(), first_short, 131072),
            std::llround(0.3 * static_cast<double>(count)));
}

TEST(RecordedDocuments, PackingCutsAtChunkEndsAndLosesNothing) {
  const std::vector<int64_t> documents = {5, 7, 20, 1};
  ChunkPacker packer(documents, 8);
  EXPECT_EQ(packer.next(2), (std::vector<int64_t>{5, 3, 4, 4}));
  EXPECT_EQ(packer.next(2), (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(packer.next(1), (std::vector<int64_t>{1, 5, 2})) << "begins anew when documents run out";
}

/// Row·keys of rows [begin, end) row by row, tiled by 128 from `begin`.
double work_row_by_row(int64_t begin, int64_t end, double startup_keys) {
  double keys = 0;
  for (int64_t row = begin; row < end; ++row) keys += static_cast<double>(row + 1);
  const auto rows = static_cast<double>(end - begin);
  return std::ceil(rows / 128) * 128 * (keys / rows + startup_keys);
}

TEST(GroupWork, SequenceIsCutHeadToTailAndDocumentsKeepTheirPrefix) {
  // 2 groups of 2 ranks; each group's 1024 tokens are cut into 4 pieces of 256: rank 0 has 0 and 3.
  const std::vector<int64_t> documents = {640, 384, 1024};
  const std::vector<GroupWork> groups = cut_by_sequence(documents, 2, 2, 560);
  ASSERT_EQ(groups.size(), 2u);
  const auto work = [](int64_t begin, int64_t end) { return work_row_by_row(begin, end, 560); };
  EXPECT_DOUBLE_EQ(groups[0].attention[0], work(0, 256) + work(128, 384));
  EXPECT_DOUBLE_EQ(groups[0].attention[1], work(256, 512) + work(512, 640) + work(0, 128));
  EXPECT_DOUBLE_EQ(groups[1].attention[0], work(0, 256) + work(768, 1024));
  EXPECT_DOUBLE_EQ(groups[1].attention[1], work(256, 512) + work(512, 768));
  EXPECT_EQ(groups[0].tokens, 512);
  EXPECT_EQ(groups[0].gathered, 512);
}

TEST(GroupWork, EqualDocumentsAreSpreadEvenlyOverGroups) {
  const std::vector<GroupWork> groups = cut_by_document(std::vector<int64_t>(8, 4096), 4, 2, 560);
  for (const GroupWork& group : groups) {
    EXPECT_EQ(group.tokens, 4096);
    EXPECT_DOUBLE_EQ(group.busiest(), 2 * (work_row_by_row(0, 1024, 560) + work_row_by_row(3072, 4096, 560)));
  }
}

TEST(GroupWork, UglyDocumentsAreCutToo) {
  // Shorter than the pieces, one token, none at all, more groups than documents.
  for (const std::vector<int64_t>& documents : {std::vector<int64_t>{}, {1}, {3, 1}, {127, 257, 7}}) {
    const auto tokens = static_cast<double>(std::accumulate(documents.begin(), documents.end(), int64_t{0}));
    for (const auto cut : {cut_by_sequence, cut_by_document}) {
      const std::vector<GroupWork> groups = cut(documents, 5, 4, 0);
      double sum = 0, attention = 0;
      for (const GroupWork& group : groups) {
        sum += 4 * group.tokens;
        attention += group.busiest();
      }
      EXPECT_DOUBLE_EQ(sum, tokens);
      EXPECT_EQ(attention > 0, tokens > 0);
    }
  }
}

TEST(Recorded, BalancedIterationIsTheClosedForm) {
  // cad on one node: layers · (tokens · CI + whole attention · (1 + excess)) + update.
  const DeviceProfile profile = find_device_profile("h200");
  const auto rows =
      parse_recorded(std::string(kHeader) + "34b\t1\t1\t1\t131072\tcad\t1\t1\tprolong\t2\t1000\n", "table");
  RecordedDraws draws;
  const RecordedWork work = draws.work_of(rows[0], 560);
  ASSERT_EQ(work.draws[0].size(), 2u);
  double attention = 0;
  for (const IterationWork& iteration : work.draws[0]) {
    ASSERT_EQ(iteration.groups.size(), 1u);
    EXPECT_EQ(iteration.groups[0].tokens, 2 * 131072);
    attention += iteration.groups[0].attention / 2;
  }
  const double layer_weights = 8192.0 * 128 * (128 + 16) + 3 * 8192.0 * 22016;
  const double linear = 8 * layer_weights / 8 / (profile.fit.linear_efficiency * 989e12);
  const double collectives = 12 * 2 * 8192.0 * 7 / 8 / 350e9;
  const double flops = 3.5 * 4 * 128 * 8 * (1 + profile.fit.planner_excess);
  const double expected =
      48 * (2 * 131072 * (linear + collectives) + attention * flops / profile.fit.attention_flops) +
      (48 * layer_weights + 2 * 32000 * 8192.0) / 8 * profile.fit.update_seconds_per_parameter;
  RecordedWork first;
  first.draws = {work.draws[0], work.draws[0]};
  const RecordedPrediction prediction = predict_recorded(rows[0], first, kModel34b, profile);
  EXPECT_NEAR(prediction.ms, 1e3 * expected, 1e-6 * prediction.ms);
  EXPECT_NEAR(prediction.spread_ms, 0, 1e-9);
}

TEST(Recorded, StartupKeysReproduceMeasuredKernels) {
  const std::string path = shared_file("attn_H100.tsv");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const DeviceProfile profile = find_device_profile("h100");
  std::istringstream lines(read_text(path));
  std::string line;
  int checked = 0;
  while (std::getline(lines, line)) {
    int64_t length = 0, cp = 0, tp = 0;
    double ms = 0;
    if (!(std::istringstream(line) >> length >> cp >> tp >> ms) || length < 1024 || cp != 1 || tp != 1)
      continue;
    // 64 heads of 128, forward: at the rate of forward kernels alone, which the profile's note names.
    const double work = attention_work(0, length, profile.fit.attention_startup_keys);
    EXPECT_NEAR(work * 4 * 128 * 64 / 360e12 / (ms * 1e-3), 1, 0.032) << length;
    ++checked;
  }
  EXPECT_EQ(checked, 7);
}

TEST(Recorded, TablesThatCantBeRightAreRefusedWithTheirPlace) {
  const auto error_of = [](const std::string& text) {
    try {
      parse_recorded(text, "t.tsv");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string good = "34b\t8\t2\t1\t131072\tcp\t2\t1\twlbllm\t5\t12468";
  EXPECT_EQ(error_of("# note\n" + std::string(kHeader) + good + "\r\n"), "accepted");
  EXPECT_EQ(error_of(""), "t.tsv: there are no rows");
  EXPECT_EQ(error_of(std::string(kHeader) + good + "\t1\n"), "t.tsv:2: 12 values for 11 columns");
  EXPECT_EQ(error_of("model\tnodes\nx\t3\n"), "t.tsv:2: there is no column policy");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string row = good;
    row.replace(row.find(from), from.size(), to);
    return error_of(std::string(kHeader) + row + "\n");
  };
  EXPECT_EQ(with("\t8\t", "\t8x\t"), "t.tsv:2: nodes is '8x': it must be a whole number of at least 1");
  EXPECT_EQ(with("\tcp\t", "\tring\t"), "t.tsv:2: policy 'ring' is neither cad, wlb nor cp");
  EXPECT_EQ(with("wlbllm", "c4"), "t.tsv:2: dataset 'c4' is neither wlbllm nor prolong");
  EXPECT_EQ(with("\t2\t1\twlb", "\t3\t1\twlb"), "t.tsv:2: 8 nodes are not a multiple of cp 3 × pp 1");
  EXPECT_EQ(with("12468", "-1"), "t.tsv:2: ms is '-1': it must be a number above 0");
}

class RecordedTable : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = shared_file("recorded_iterations.tsv");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
    rows = parse_recorded(read_text(path), path);
  }

  std::vector<RecordedRow> rows;
};

TEST_F(RecordedTable, IsPredictedWithinTheStatedErrors) {
  const auto predictions = predict_recorded(rows, model_of, find_device_profile("h200"));
  const RecordedReport report = report_recorded(rows, predictions);
  ASSERT_EQ(report.errors.size(), 4u) << recorded_text(rows, predictions, report);
  EXPECT_EQ(report.errors[0].rows, 25);
  EXPECT_LE(report.errors[0].median, 0.025);
  EXPECT_LE(report.errors[0].worst, 0.08);
  EXPECT_EQ(report.errors[1].rows, 9);
  EXPECT_LE(report.errors[1].median, 0.04);
  EXPECT_LE(report.errors[1].worst, 0.10);
  EXPECT_LE(report.errors[2].worst, 0.20);
  EXPECT_LE(report.errors[2].worst_spreads, 2);
  EXPECT_LE(report.errors[3].worst, 0.20);
  for (const RecordedGroup& group : report.groups) {
    if (group.lead < 0.02) continue;
    EXPECT_EQ(group.predicted, group.measured) << group.name;
  }
  EXPECT_GE(static_cast<double>(report.right_pairs), 0.95 * static_cast<double>(report.pairs));
  const Json json = parse_json(recorded_json(rows, predictions, report), "report");
  EXPECT_EQ(json["rows"].size(), rows.size());
  EXPECT_EQ(json["rows"][0]["nodes"], 32);
  EXPECT_EQ(json["rows"][0]["ms"], 20062);
  EXPECT_EQ(json["rows"][0]["policy"], "cad");
  EXPECT_DOUBLE_EQ(json["rows"][0]["predicted_ms"].get<double>(), predictions[0].ms);
}

TEST_F(RecordedTable, FitsToTheShippedConstants) {
  const DeviceProfile shipped = find_device_profile("h200");
  const FittedConstants fit = fit_recorded(rows, model_of, shipped).fit;
  EXPECT_NEAR(fit.linear_efficiency / shipped.fit.linear_efficiency, 1, 0.01);
  EXPECT_NEAR(fit.attention_flops / shipped.fit.attention_flops, 1, 0.01);
  EXPECT_NEAR(fit.gather_bytes_per_second / shipped.fit.gather_bytes_per_second, 1, 0.01);
  EXPECT_NEAR(fit.update_seconds_per_parameter / shipped.fit.update_seconds_per_parameter, 1, 0.01);
  EXPECT_NEAR(fit.planner_excess, shipped.fit.planner_excess, 0.001);
}

TEST(DeviceProfile, SurvivesBeingWrittenAndRead) {
  const DeviceProfile profile = find_device_profile("h100");
  const std::string text = dump_device_profile(profile);
  EXPECT_EQ(dump_device_profile(parse_device_profile(text, "text")), text);
  EXPECT_EQ(profile.memory_bytes, 80e9);
  // Planning reads the same file: 4,096 rows of 4,096 keys, 32 heads of 128, forward.
  const AttentionTimes times = Profile::parse(text, "text").attention({32, 8, 128, 2}, "forward");
  const double pairs = 4096 * (4097.0 / 2 + profile.fit.attention_startup_keys);
  EXPECT_NEAR(times.seconds[5][5], pairs * 4 * 128 * 32 / profile.fit.attention_flops, 1e-9);
  EXPECT_EQ(times.q[5], 4096);
  std::string broken = text;
  broken.replace(broken.find("peak_flops"), 10, "peak_flips");
  try {
    parse_device_profile(broken, "p.json");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "p.json: device: peak_flops is missing");
  }
  EXPECT_THROW(find_device_profile("b200"), InputError);
}

}  // namespace
}  // namespace distca
