#include "plan/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/check.h"
#include "plan/coverage.h"
#include "plan/distribution.h"
#include "plan/policy.h"
#include "plan/profile.h"
#include "plan/report.h"

namespace distca {
namespace {

/// Times of a device that does 1e12 pairs a second, plus a microsecond a task, on a coarse grid.
AttentionTimes times_of(double pairs_per_second, double overhead) {
  AttentionTimes times;
  for (int64_t at = 128; at <= 131072; at *= 2) times.q.push_back(at);
  times.kv = times.q;
  for (const int64_t q : times.q) {
    times.seconds.emplace_back();
    for (const int64_t kv : times.kv) {
      // Where kv < q the first rows see nothing.
      const double pairs =
          kv >= q ? double(q) * (double(kv) - (double(q) - 1) / 2) : double(kv) * (double(kv) + 1) / 2;
      times.seconds.back().push_back(pairs / pairs_per_second + overhead);
    }
  }
  return times;
}

TEST(Cost, StartUpRowsAndPairsInsideTheGridAreExact) {
  AttentionTimes times = times_of(1e12, 1e-6);
  for (size_t i = 0; i < times.q.size(); ++i) {
    for (double& seconds : times.seconds[i]) seconds += 1e-9 * static_cast<double>(times.q[i]);
  }
  const TaskCost cost(times);
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const int64_t rows = 1 + below(65536), first = below(65536);
    const Task task = i % 3 == 0   ? Task{0, {0, rows}, {0, rows}, 0}
                      : i % 3 == 1 ? Task{0, {first, first + rows}, {0, first + rows}, 0}
                                   : Task{0, {200000, 200000 + rows}, {0, 1 + rows / 2 + first / 2}, 0};
    const double tiles = std::ceil(static_cast<double>(rows) / 128) * 128;
    EXPECT_NEAR(static_cast<double>(cost(task)), static_cast<double>(padded_pairs(task)) + 1e6 + tiles * 1e3,
                1)
        << rows << " rows, keys to " << task.kv.end;
  }
  EXPECT_EQ(cost(Task{0, {5, 5}, {0, 5}, 0}), 0);
}

TEST(Cost, GridPointsAreExactWhateverTheirTimes) {
  AttentionTimes times{{128, 384, 1024}, {100, 128, 500, 1024, 3000}, {}};
  std::mt19937_64 random(8);
  for (size_t i = 0; i < times.q.size(); ++i) {
    times.seconds.emplace_back();
    for (size_t j = 0; j < times.kv.size(); ++j)
      times.seconds.back().push_back(1e-6 * static_cast<double>(1 + random() % 1000));
  }
  const TaskCost cost(times);
  for (size_t i = 0; i < times.q.size(); ++i) {
    for (size_t j = 0; j < times.kv.size(); ++j) {
      const int64_t q = times.q[i], kv = times.kv[j];
      if (kv >= q)
        EXPECT_NEAR(double(cost(Task{0, {kv - q, kv}, {0, kv}, 0})), times.seconds[i][j] * 1e12, 1);
    }
  }
}

TEST(Cost, OutsideTheGridTasksCostTheirShareOfPairs) {
  const TaskCost cost(times_of(1e12, 1e-6));
  // One row of the last key, a quarter of the first point's pairs: no less than that share of its time.
  const Task few{0, {4096, 4224}, {0, 16}, 0};
  EXPECT_GE(double(cost(few)), double(padded_pairs(few)) / (128 * 129 / 2) * (128 * 129 / 2 + 1e6) - 1);
  for (const Task& task :
       {Task{0, {0, 1 << 20}, {0, 1 << 20}, 0}, Task{0, {1 << 22, (1 << 22) + 128}, {0, 1 << 22}, 0},
        Task{0, {int64_t{1} << 40, (int64_t{1} << 40) + 512}, {0, int64_t{1} << 32}, 0}}) {
    EXPECT_NEAR(double(cost(task)) / double(padded_pairs(task)), 1, 0.1) << task.q.end;
  }
}

TEST(Cost, WhatStandsWhereRowsSeeNothingDoesNotMatter) {
  AttentionTimes times = times_of(1e12, 1e-6);
  const TaskCost cost(times);
  for (size_t i = 0; i < times.q.size(); ++i) {
    for (size_t j = 0; j < i; ++j) times.seconds[i][j] = 1e3;
  }
  const TaskCost other(times);
  for (const Task& task : {Task{0, {8000, 9000}, {0, 9000}, 0}, Task{0, {9088, 12160}, {0, 500}, 0}})
    EXPECT_EQ(cost(task), other(task));
  EXPECT_THROW(TaskCost(AttentionTimes{{512, 1024}, {128, 256}, {{1, 1}, {1, 1}}}), InputError);
}

TEST(Cost, RowsCountAsFullTiles) {
  const TaskCost cost(times_of(1e12, 1e-6));
  EXPECT_EQ(cost(Task{0, {1024, 1025}, {0, 1024}, 0}), cost(Task{0, {1024, 1152}, {0, 1024}, 0}));
}

TEST(Cost, ProfilesOfDevicesPlanToTheToleranceInSeconds) {
  const TaskCost cost(times_of(3e12, 2e-5));
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    for (const uint64_t seed : {1, 2, 3}) {
      PlanOptions options;
      options.cost = cost;
      const PlanResult result =
          make_plan(pack_documents(sample_documents(distribution, 16, 131072, seed)), options);
      EXPECT_EQ(coverage::fault_of(result.plan), "");
      EXPECT_TRUE(result.within_tolerance) << result.shortfalls.front();
      std::vector<int64_t> loads(16, 0);
      for (const Task& task : result.plan.tasks) loads[static_cast<size_t>(task.server)] += cost(task);
      EXPECT_LE(max_over_mean(loads), 1.02 + 1e-9);
    }
  }
}

constexpr const char* kProfile =
    R"({"name": "x", "attention": [{"direction": "forward", "head_dim": 64, "heads": 4,
  "kv_heads": 2, "q": [128, 256], "kv": [128, 256], "seconds": [[1e-6, 2e-6], [3e-6, 4e-6]]}],
  "links": {"intra": {"latency_s": 1e-6, "bytes_per_s": 1e11}, "inter": {"latency_s": 1e-5, "bytes_per_s": 1e10}}})";

TEST(Profile, ReadsTimesAndLinksAndScalesHeads) {
  const Profile profile = Profile::parse(kProfile, "p.json");
  EXPECT_EQ(profile.name(), "x");
  EXPECT_EQ(profile.links().inter.bytes_per_s, 1e10);
  EXPECT_DOUBLE_EQ(profile.attention({8, 2, 64, 2}, "forward").seconds[1][0], 6e-6);
  EXPECT_THROW(profile.attention({8, 2, 128, 2}, "forward"), InputError);
  EXPECT_THROW(profile.attention({8, 2, 64, 2}, "backward"), InputError);
}

TEST(Profile, FittedConstantsGiveTimesByTheirFormula) {
  const Profile profile = Profile::parse(
      R"({"name": "y", "device": {"backward_factor": 2.5}, "fit": {"attention_flops": 1e12, "attention_startup_keys": 100}})",
      "p.json");
  const AttentionTimes times = profile.attention({8, 2, 64, 2}, "forward");
  // 1,024 rows of a document of 2,048: 1,024 · (2,048 - 511.5 + 100) pairs of 4 · 8 · 64 flops.
  EXPECT_DOUBLE_EQ(times.seconds[3][4], 1024 * (2048 - 511.5 + 100) * 4 * 8 * 64 / 1e12);
  EXPECT_DOUBLE_EQ(profile.attention({8, 2, 64, 2}, "backward").seconds[3][4], 2.5 * times.seconds[3][4]);
}

TEST(Profile, ErrorsNameTheFileAndThePlace) {
  const auto error = [](std::string text, const std::string& from, const std::string& to) -> std::string {
    text.replace(text.find(from), from.size(), to);
    try {
      Profile::parse(text, "p.json");
    } catch (const InputError& fault) {
      return fault.what();
    }
    return "none";
  };
  EXPECT_THAT(error(kProfile, "[128, 256], \"kv\"", "[256, 128], \"kv\""),
              testing::HasSubstr("p.json: attention[0]: the profile's q grid"));
  EXPECT_THAT(error(kProfile, "3e-6", "-1"), testing::HasSubstr("a task of -1 seconds"));
  EXPECT_THAT(error(kProfile, "\"heads\": 4,", ""), testing::HasSubstr("has no \"heads\""));
  EXPECT_THAT(error(kProfile, "\"name\": \"x\"", "\"name\": 3"), testing::HasSubstr("p.json: name is 3"));
}

}  // namespace
}  // namespace distca
