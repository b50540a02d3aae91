#include "plan/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/check.h"
#include "plan/coverage.h"
#include "plan/distribution.h"
#include "plan/policy.h"
#include "plan/profile.h"
#include "plan/report.h"

namespace distca {
namespace {

TEST(Cost, LogarithmsAreThoseOfTheLibrary) {
  for (double x = 1e-9; x < 1e15; x *= 1.37)
    EXPECT_NEAR(exact_log2(x), std::log2(x), 2e-14 * (1 + std::abs(std::log2(x))));
  for (double x = -60; x < 60; x += 0.37) EXPECT_NEAR(exact_exp2(x) / std::exp2(x), 1, 1e-14);
}

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

TEST(Cost, GridPointsAreExactAndPointsBetweenAreClose) {
  const TaskCost cost(times_of(1e12, 1e-6));
  const auto expected = [](const Task& task) {
    return static_cast<double>(padded_pairs(task)) / 1e12 * 1e12 + 1e6;
  };
  for (const Task& task : {Task{0, {0, 4096}, {0, 4096}, 0}, Task{0, {4096, 8192}, {0, 8192}, 0},
                           Task{0, {0, 128}, {0, 128}, 0}}) {
    EXPECT_NEAR(static_cast<double>(cost(task)) / expected(task), 1, 1e-9) << task.q.end;
  }
  for (const Task& task : {Task{0, {8000, 9000}, {0, 9000}, 0}, Task{0, {9088, 12160}, {0, 9088}, 0},
                           Task{0, {0, 70000}, {0, 70000}, 0}}) {
    EXPECT_NEAR(static_cast<double>(cost(task)) / expected(task), 1, 0.12) << task.q.end;
  }
  EXPECT_EQ(cost(Task{0, {5, 5}, {0, 5}, 0}), 0);
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
