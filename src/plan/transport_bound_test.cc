#include "plan/transport_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "plan/random.h"

namespace distca {
namespace {

/// The cheapest rows and keys of one document that hold each load, and of several documents.
std::vector<double> cheapest(int64_t tokens, int64_t most, double row, double key) {
  std::vector<double> least(static_cast<size_t>(most) + 1, INFINITY);
  least[0] = 0;
  for (int64_t rows = 1; rows <= tokens; ++rows) {
    for (int64_t keys = 1; keys <= tokens; ++keys) {
      int64_t load = 0;
      for (int64_t q = tokens - rows; q < tokens; ++q) load += std::min(keys, q + 1);
      double& entry = least[static_cast<size_t>(std::min(load, most))];
      entry = std::min(entry, row * static_cast<double>(rows) + key * static_cast<double>(keys));
    }
  }
  for (size_t load = least.size() - 1; load-- > 0;) least[load] = std::min(least[load], least[load + 1]);
  for (size_t load = 1; load < least.size(); ++load) {
    for (size_t part = 1; part <= load / 2; ++part)
      least[load] = std::min(least[load], least[part] + least[load - part]);
  }
  return least;
}

TEST(MoveCost, NoRowsAndKeysCostLess) {
  const RowBytes models[] = {{8, 2, 2, 8, 0}, {1, 1, 1, 1, 0}, {32, 4, 4, 32, 0}, {1, 4, 4, 1, 0}};
  for (const int64_t tokens : {30, 61}) {
    for (const RowBytes& bytes : models) {
      SCOPED_TRACE(format("{} tokens, Q of {}", tokens, bytes.q));
      const int64_t most = tokens * tokens;
      const std::vector<double> least =
          cheapest(tokens, most, static_cast<double>(bytes.q + bytes.o), static_cast<double>(bytes.kv()));
      const MoveCost cost(bytes, static_cast<double>(tokens), 0, static_cast<double>(most));
      double sum = 0, least_sum = 0;
      for (size_t load = 0; load < least.size(); ++load) {
        ASSERT_LE(cost(static_cast<double>(load)), least[load] * (1 + 1e-12)) << "a load of " << load;
        sum += cost(static_cast<double>(load));
        least_sum += least[load];
      }
      EXPECT_GT(sum, 0.95 * least_sum);
    }
  }
}

TEST(MoveCost, LinesStayBelow) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const double longest = 128 * static_cast<double>(random.between(1, 500));
    const double most = longest * longest * random.unit() * 3;
    const MoveCost cost({64, 8, 8, 64, 0}, longest, static_cast<double>(random.between(0, 127)), most);
    const double low = most * random.unit(), high = low + (most - low) * random.unit();
    if (high <= low) continue;
    const double slope = cost.slope(low, high);
    for (int k = 0; k <= 50; ++k) {
      const double at = low + (high - low) * random.unit();
      ASSERT_LE(cost(low) + slope * (at - low), cost(at) * (1 + 1e-9));
    }
  }
}

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
    const MoveCost cost({1, 1, 1, 1, 0}, is_long ? 1000 : static_cast<double>(random.between(2, 6)), 0, 10);
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
  const MoveCost cost({1, 1, 1, 1, 0}, 1000, 0, 24);
  const double four_ways = std::sqrt(7.0) + std::sqrt(7.0) + std::sqrt(5.0);
  EXPECT_NEAR(transport_bound_bytes({19, 24, 24}, {4, 31, 7, 29, 4}, cost),
              4 * (std::sqrt(24.0) + std::sqrt(24.0) + four_ways), 0.1);
}

TEST(TransportBound, IsNothingWhereRoomIsShort) {
  const MoveCost cost({1, 1, 1, 1, 0}, 1000, 0, 24);
  EXPECT_EQ(transport_bound_bytes({19}, {4, 3}, cost), 0);
  EXPECT_EQ(transport_bound_bytes({}, {4, 3}, cost), 0);
}

}  // namespace
}  // namespace distca
