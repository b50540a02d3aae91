#include "plan/free_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "plan/coverage.h"
#include "plan/distribution.h"
#include "plan/exchange.h"
#include "plan/random.h"
#include "plan/traffic.h"
#include "plan/validate.h"

namespace distca {
namespace {

double max_over_mean(const std::vector<int64_t>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(loads.size()) / sum;
}

/// Largest distance of a rank's tokens from the mean.
double token_deviation(const Layout& layout) {
  const double mean = static_cast<double>(layout.tokens()) / layout.ranks;
  double most = 0;
  for (const int64_t tokens : layout.tokens_of_ranks())
    most = std::max(most, std::abs(static_cast<double>(tokens) - mean));
  return most;
}

TEST(FreeLayout, TokensAreEqualLoadsEvenAndBytesFewerThanFixed) {
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    for (const int32_t chunks : {8, 32, 64}) {
      const Documents documents = sample_documents(distribution, chunks, 131072, 5);
      SCOPED_TRACE(chunks);
      PlanOptions options;
      const Plan fixed = make_plan(pack_documents(documents), options).plan;
      options.layout = LayoutKind::kFree;
      const PlanResult free = make_plan(pack_documents(documents), options);
      EXPECT_EQ(coverage::fault_of(free.plan), "");
      EXPECT_NO_THROW(free.plan.validate());
      EXPECT_LE(token_deviation(free.plan.layout), 128);
      EXPECT_LE(max_over_mean(padded_pairs_of_servers(free.plan)), 1.02);
      EXPECT_LE(max_over_mean(pairs_of_servers(free.plan)), 1.02);
      const double before =
          static_cast<double>(planned_traffic(fixed, make_exchange(fixed), options.bytes).total());
      const double after =
          static_cast<double>(planned_traffic(free.plan, make_exchange(free.plan), options.bytes).total());
      EXPECT_LE(after, 0.65 * before);
    }
  }
}

TEST(FreeLayout, AnyLengthsMakeAValidLayout) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<int64_t> lengths;
    for (int64_t count = random.between(0, 40); count > 0; --count) {
      lengths.push_back(random.between(0, 4) == 0 ? random.between(0, 50000) : random.between(0, 3000));
    }
    const auto ranks = static_cast<int32_t>(random.between(1, 12));
    PlanOptions options;
    options.layout = LayoutKind::kFree;
    options.search_moves = 100;
    options.dedicated = static_cast<int32_t>(random.between(0, 2));
    const PlanResult result = make_plan(pack_in_order(lengths, ranks), options);
    ASSERT_EQ(coverage::fault_of(result.plan), "");
    ASSERT_NO_THROW(result.plan.validate());
    ASSERT_EQ(result.plan.layout.doc_lengths, lengths);
    ASSERT_EQ(result.plan.layout.ranks, ranks);
    ASSERT_LE(token_deviation(result.plan.layout), 128) << result.plan.layout.tokens();
  }
}

TEST(FreeLayout, PiecesOfOneDocumentLieOnNeighbours) {
  const Layout layout = free_layout({40000, 1000, 1000, 1000, 1000}, 4, {});
  int32_t before = -1;
  for (const Shard& shard : layout.shards) {
    if (shard.doc != 0) continue;
    if (before >= 0) {
      EXPECT_LE(std::abs(shard.home - before), 1);
    }
    before = shard.home;
  }
}

}  // namespace
}  // namespace distca
