#include "plan/bound.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Bound, OneDonorAndOneReceiverNeedASquareRoot) {
  // 100 pairs more than its 100: the cheapest rectangle has 5 rows of 16 bytes and 20 keys of 4.
  EXPECT_DOUBLE_EQ(lower_bound_bytes({200, 0}, {100, 100}, {8, 2, 2, 8, 0}), 160);
}

TEST(Bound, TheLargerOfReceiversAndDonorsCounts) {
  // Two donors of 25 fit into one receiver of 50: the donors' 5 + 5 is more than the receiver's root of 50.
  EXPECT_DOUBLE_EQ(lower_bound_bytes({125, 125, 0}, {100, 100, 50}, {1, 1, 0, 0, 0}), 20);
  // One donor of 50 and two receivers of 25.
  EXPECT_DOUBLE_EQ(lower_bound_bytes({150, 0, 0}, {100, 25, 25}, {1, 1, 0, 0, 0}), 20);
  EXPECT_DOUBLE_EQ(lower_bound_bytes({10, 10}, {10, 10}, {1, 1, 0, 0, 0}), 0);
}

}  // namespace
}  // namespace distca
