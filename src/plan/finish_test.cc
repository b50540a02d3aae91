#include "plan/finish.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/random_plan.h"

namespace distca {
namespace {

TEST(FinishTimes, EqualServersShareEqually) {
  const FinishTimes times = finish_times(1000, 4, {}, {}, 0.1);
  EXPECT_EQ(times.best, 250);
  EXPECT_EQ(times.capacity, (std::vector<int64_t>{275, 275, 275, 275}));
}

TEST(FinishTimes, ARankThatIsLateAnywayComputesNothing) {
  // Two idle servers, one of half speed, one that has work of its own for 10,000.
  const FinishTimes times = finish_times(250, 4, {1, 1, 0.5, 1}, {0, 0, 0, 10000}, 0);
  EXPECT_EQ(times.best, 100);
  EXPECT_EQ(times.capacity, (std::vector<int64_t>{100, 100, 50, 0}));
}

TEST(FinishTimes, BestFinishSolvesTheEquation) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto servers = static_cast<int32_t>(random.between(1, 20));
    std::vector<double> speeds, ci;
    for (int32_t i = 0; i < servers; ++i) {
      speeds.push_back(0.5 + random.unit());
      ci.push_back(random.between(0, 2) == 0 ? 0 : 1000 * random.unit());
    }
    const int64_t total = random.between(0, 20000);
    const double best = finish_times(total, servers, speeds, ci, 0.02).best;
    double sum = 0;
    for (size_t i = 0; i < speeds.size(); ++i) sum += speeds[i] * std::max(0.0, best - ci[i]);
    EXPECT_NEAR(sum, static_cast<double>(total), 1e-6 * static_cast<double>(total + 1));
  }
}

}  // namespace
}  // namespace distca
