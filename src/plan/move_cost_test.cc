#include "plan/move_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "plan/random.h"

namespace distca {
namespace {

/// The cheapest rows and keys of one document that hold each load.
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
  return least;
}

/// Of any number of such documents.
std::vector<double> cheapest_of_many(std::vector<double> least) {
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
      const std::vector<double> least = cheapest_of_many(
          cheapest(tokens, most, static_cast<double>(bytes.q + bytes.o), static_cast<double>(bytes.kv())));
      const MoveCost cost({bytes, static_cast<double>(tokens), 0}, static_cast<double>(most));
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
    const auto padding = static_cast<double>(random.between(0, 127));
    const MoveCost cost({{64, 8, 8, 64, 0}, longest, padding}, most);
    const double low = most * random.unit(), high = low + (most - low) * random.unit();
    if (high <= low) continue;
    const double slope = cost.slope(low, high);
    for (int k = 0; k <= 50; ++k) {
      const double at = low + (high - low) * random.unit();
      ASSERT_LE(cost(low) + slope * (at - low), cost(at) * (1 + 1e-9));
    }
  }
}

TEST(MoveCost, NoSharingOutOverDocumentsCostsLess) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const RowBytes models[] = {{8, 2, 2, 8, 0}, {1, 1, 1, 1, 0}, {32, 4, 4, 32, 0}, {1, 4, 4, 1, 0}};
    const RowBytes& bytes = models[random.below(std::size(models))];
    std::vector<int64_t> lengths;
    std::vector<DocumentCost> documents;
    int64_t all = 0;
    for (int64_t count = random.between(1, seed % 4 == 0 ? 20 : 6); count > 0; --count) {
      lengths.push_back(random.between(1, seed % 4 == 0 ? 12 : 40));
      documents.push_back({bytes, static_cast<double>(lengths.back()), 0});
      all += lengths.back() * (lengths.back() + 1) / 2;
    }
    std::vector<double> least(static_cast<size_t>(all) + 1, INFINITY);
    least[0] = 0;
    for (const int64_t length : lengths) {
      const std::vector<double> one =
          cheapest(length, length * (length + 1) / 2, static_cast<double>(bytes.q + bytes.o),
                   static_cast<double>(bytes.kv()));
      for (size_t sum = least.size() - 1; sum > 0; --sum) {
        for (size_t part = 1; part < std::min(one.size(), sum + 1); ++part)
          least[sum] = std::min(least[sum], one[part] + least[sum - part]);
      }
    }
    double sum = 0, least_sum = 0;
    for (int i = 0; i < 20; ++i) {
      const int64_t load = random.between(1, all);
      const double bound = documents_bound_bytes(documents, static_cast<double>(load));
      ASSERT_LE(bound, least[static_cast<size_t>(load)] * (1 + 1e-12)) << "a load of " << load;
      sum += bound;
      least_sum += least[static_cast<size_t>(load)];
    }
    EXPECT_GT(sum, (lengths.size() > 16 ? 0.6 : 0.8) * least_sum);
  }
}

}  // namespace
}  // namespace distca
