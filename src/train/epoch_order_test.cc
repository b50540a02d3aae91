#include "train/epoch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace distca {
namespace {

TEST(EpochOrder, TakesEveryDocumentOnce) {
  for (int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 65537}) {
    for (uint64_t seed : {0, 1, 99}) {
      const EpochOrder order(count, seed, 3);
      std::vector<int> seen(count);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_GE(order[i], 0);
        ASSERT_LT(order[i], count);
        ++seen[order[i]];
      }
      for (int times : seen) EXPECT_EQ(times, 1) << count << " documents, seed " << seed;
    }
  }
}

TEST(EpochOrder, EpochsAndSeedsDiffer) {
  const EpochOrder a(1000, 0, 0), b(1000, 0, 1), c(1000, 1, 0);
  int same_epoch = 0, same_seed = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same_epoch += a[i] == b[i];
    same_seed += a[i] == c[i];
  }
  EXPECT_LT(same_epoch, 10) << "two random orders of 1,000 agree in 1 place on average";
  EXPECT_LT(same_seed, 10);
}

/// Chi-square over the place of document 0 among 8 in 4,000 epochs: 7 degrees of freedom, 24.3 at p = .001.
TEST(EpochOrder, EveryPlaceIsEquallyLikely) {
  constexpr int kCount = 8, kEpochs = 4000;
  std::vector<double> times(kCount);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const EpochOrder order(kCount, 5, epoch);
    for (int64_t i = 0; i < kCount; ++i) times[i] += order[i] == 0;
  }
  double chi_square = 0;
  for (double n : times) chi_square += std::pow(n - kEpochs / kCount, 2) / (kEpochs / kCount);
  EXPECT_LT(chi_square, 24.3);
}

TEST(EpochOrder, ReachesBeyondThirtyTwoBits) {
  const int64_t count = (int64_t{1} << 33) + 1;
  const EpochOrder order(count, 7, 0);
  int64_t most = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_GE(order[count - 1 - i], 0);
    ASSERT_LT(order[count - 1 - i], count);
    most = std::max(most, order[i]);
  }
  EXPECT_GT(most, int64_t{1} << 32);
}

}  // namespace
}  // namespace distca
