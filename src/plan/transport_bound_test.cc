#include "plan/transport_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "plan/random.h"

namespace distca {
namespace {

/// The least sum of costs over whole flows.
double brute_force(std::vector<int64_t> surplus, std::vector<int64_t> rooms, size_t at,
                   const MoveCost& cost) {
  const size_t donor = at / rooms.size(), recipient = at % rooms.size();
  if (donor == surplus.size()) return 0;
  double least = INFINITY;
  const int64_t most = std::min(surplus[donor], rooms[recipient]);
  const bool last = recipient + 1 == rooms.size();
  for (int64_t load = last ? surplus[donor] : 0; load <= most; ++load) {
    surplus[donor] -= load;
    rooms[recipient] -= load;
    least = std::min(least, cost(static_cast<double>(load)) + brute_force(surplus, rooms, at + 1, cost));
    surplus[donor] += load;
    rooms[recipient] += load;
  }
  return least;
}

TEST(TransportBound, IsTheLeastThatFlowsCost) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<int64_t> surplus, rooms;
    for (int64_t i = random.between(1, 3); i > 0; --i) surplus.push_back(random.between(1, 9));
    for (int64_t i = random.between(1, 3); i > 0; --i) rooms.push_back(random.between(1, 14));
    // Long documents, so that the root alone counts and whole flows are the cheapest; and short ones.
    const bool is_long = random.between(0, 1) == 0;
    const MoveCost cost(
        DocumentCost({1, 1, 1, 1, 0}, is_long ? 1000 : static_cast<double>(random.between(2, 6)), 0), 10);
    const double least = brute_force(surplus, rooms, 0, cost);
    if (std::isinf(least)) continue;
    const double bound = transport_bound_bytes({surplus.begin(), surplus.end()}, {rooms.begin(), rooms.end()},
                                               cost, 1'000'000);
    ASSERT_LE(bound, least * (1 + 1e-9));
    if (is_long) {
      ASSERT_GT(bound, 0.99 * least);
    }
    ++feasible;
    // Less work makes a bound that is no closer.
    ASSERT_LE(transport_bound_bytes({surplus.begin(), surplus.end()}, {rooms.begin(), rooms.end()}, cost, 1),
              bound * (1 + 1e-2));
  }
  EXPECT_GT(feasible, 50);
}

TEST(TransportBound, SurplusThatNoRoomMatchesIsDear) {
  // 19, 24 and 24 into 4, 31, 7, 29 and 4: both 24 fill a large room, and 19 goes four ways.
  const MoveCost cost(DocumentCost({1, 1, 1, 1, 0}, 1000, 0), 24);
  const double four_ways = std::sqrt(7.0) + std::sqrt(7.0) + std::sqrt(5.0);
  EXPECT_NEAR(transport_bound_bytes({19, 24, 24}, {4, 31, 7, 29, 4}, cost),
              4 * (std::sqrt(24.0) + std::sqrt(24.0) + four_ways), 0.1);
}

TEST(TransportBound, IsNothingWhereRoomIsShort) {
  const MoveCost cost(DocumentCost({1, 1, 1, 1, 0}, 1000, 0), 24);
  EXPECT_EQ(transport_bound_bytes({19}, {4, 3}, cost), 0);
  EXPECT_EQ(transport_bound_bytes({}, {4, 3}, cost), 0);
}

}  // namespace
}  // namespace distca
