#include "attend/attention_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attend/attention_profile.h"
#include "base/check.h"
#include "base/sanitizer.h"

namespace distca {
namespace {

TEST(AttentionBench, MeasuresTheShapesThatAreAskedForBesideTheirPeer) {
  if (kSanitized) GTEST_SKIP() << "times under a sanitizer tell nothing";
  std::vector<std::string> seen;
  const AttentionBench bench = bench_attention({.quick = true, .only = "doc128/d64"},
                                               [&](const BenchRow& row) { seen.push_back(row.name); });
  EXPECT_THAT(seen, testing::ElementsAre("attention/forward/doc128/d64/gqa4/t1",
                                         "attention/backward/doc128/d64/gqa4/t1"));
  ASSERT_EQ(bench.rows.size(), seen.size());
  for (const BenchRow& row : bench.rows) {
    EXPECT_EQ(row.baseline, "at::mm");
    EXPECT_GT(row.value, 0);
    EXPECT_GT(row.ratio, 0);
  }
  EXPECT_GT(bench.product, 0);
  EXPECT_GT(bench.multiply_add, 0);
}

TEST(AttentionBench, NoSuchShapeIsAnInputErrorThatNamesIt) {
  try {
    bench_attention({.quick = true, .only = "doc7"}, [](const BenchRow&) {});
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "no shape's name contains 'doc7'");
  }
}

TEST(AttentionProfile, GridsOfBothDirectionsGrowWithTheWork) {
  if (kSanitized) GTEST_SKIP() << "times under a sanitizer tell nothing";
  double done = 0;
  const AttentionProfile profile = profile_attention({2, 1, 16, 0.25}, {.quick = true}, [&](double part) {
    EXPECT_GE(part, done);
    done = part;
  });
  EXPECT_EQ(done, 1);
  ASSERT_EQ(profile.grids.size(), 2);
  EXPECT_EQ(profile.grids[0].direction, "forward");
  EXPECT_EQ(profile.grids[1].direction, "backward");
  for (const AttentionGrid& grid : profile.grids) {
    const AttentionTimes& times = grid.times;
    EXPECT_TRUE(std::is_sorted(times.q.begin(), times.q.end()));
    EXPECT_TRUE(std::is_sorted(times.kv.begin(), times.kv.end()));
    ASSERT_EQ(times.seconds.size(), times.q.size());
    for (const std::vector<double>& row : times.seconds) {
      ASSERT_EQ(row.size(), times.kv.size());
      for (const double seconds : row) EXPECT_GT(seconds, 0);
    }
    EXPECT_GT(times.seconds.back().back(), 10 * times.seconds.front().front());
    EXPECT_GT(TaskCost(times)({0, {0, 4096}, {0, 4096}, 0}), TaskCost(times)({0, {0, 128}, {0, 128}, 0}));
  }
  EXPECT_GT(profile.fit.points, 0);
}

}  // namespace
}  // namespace distca
