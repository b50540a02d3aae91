#include "plan/baselines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/check.h"
#include "plan/coverage.h"
#include "plan/distribution.h"
#include "plan/policy.h"
#include "plan/random_plan.h"

namespace distca {
namespace {

using testing::ElementsAre;

std::vector<int64_t> positions_of(const Layout& layout, int32_t rank) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (const Shard& shard : layout.shards) {
    for (int64_t i = 0; shard.home == rank && i < shard.tokens.size(); ++i) {
      rows.push_back({shard.row + i, shard.tokens.begin + i});
    }
  }
  std::sort(rows.begin(), rows.end());
  std::vector<int64_t> positions;
  for (const auto& [row, position] : rows) positions.push_back(position);
  return positions;
}

TEST(Baselines, TwoDocumentsOfFourTokensHeadTailOverTwoRanks) {
  const Layout layout = context_parallel_layout(pack_in_order({4, 4}, 2), 2);
  EXPECT_THAT(positions_of(layout, 0), ElementsAre(0, 3, 0, 3));
  EXPECT_THAT(positions_of(layout, 1), ElementsAre(1, 2, 1, 2));
}

TEST(Baselines, PaddingIsNoToken) {
  // 698 tokens in 8 slices of 88, the last of 82.
  EXPECT_THAT(context_parallel_layout(pack_in_order({698}, 4), 4).tokens_of_ranks(),
              ElementsAre(170, 176, 176, 176));
  // Seven tokens are seven.
  EXPECT_THAT(context_parallel_layout(pack_in_order({7}, 2), 2).tokens_of_ranks(), ElementsAre(3, 4));
}

TEST(Baselines, SequencesAreCutWhateverTheirDocuments) {
  const Layout layout = sequence_parallel_layout(pack_in_order({5, 3}, 2), 2);
  EXPECT_THAT(positions_of(layout, 0), ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(positions_of(layout, 1), ElementsAre(2, 3, 4, 0));
}

TEST(Baselines, EveryPolicyPlansAnyBatch) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Layout layout = random_layout(random, 12, 3000);
    for (const Policy policy : {Policy::kNone, Policy::kCad, Policy::kWlb, Policy::kCp, Policy::kCpSeq}) {
      PlanOptions options;
      options.policy = policy;
      options.search_moves = 20;
      for (const int32_t cp : {1, 2, 3, 4}) {
        if (layout.ranks % cp == 0) options.cp = cp;
      }
      const Plan plan = make_plan(layout, options).plan;
      ASSERT_EQ(coverage::fault_of(plan), "") << name_of(policy);
      ASSERT_NO_THROW(plan.validate()) << name_of(policy);
    }
  }
}

TEST(Baselines, GroupsThatDoNotDivideTheRanksAreAnInputError) {
  PlanOptions options;
  options.policy = Policy::kCp;
  options.cp = 2;
  EXPECT_THROW(make_plan(pack_in_order({100}, 3), options), InputError);
}

TEST(WlbPacker, EveryDocumentComesOutOnceAndOutliersSpreadOverGroups) {
  WlbPacker packer(4, 131072);
  LengthSampler sampler(Distribution::kWlbllm, 131072, 1);
  std::multiset<int64_t> in, out;
  int64_t id = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<WlbPacker::Document> arrived;
    for (int64_t tokens = 0; tokens < 4 * 131072;) {
      const int64_t length = std::min<int64_t>(131072, sampler.next());
      arrived.push_back({id, length});
      in.insert(id++);
      tokens += length;
    }
    for (const auto& group : packer.pack(std::move(arrived), step == 19)) {
      int64_t tokens = 0, outliers = 0;
      for (const WlbPacker::Document& document : group) {
        out.insert(document.id);
        tokens += document.length;
        outliers += document.length > 3 * 131072 / 4;
      }
      if (step == 19) continue;
      EXPECT_LE(tokens, 131072 * 5 / 4);
      EXPECT_LE(outliers, 1);
    }
  }
  EXPECT_EQ(packer.waiting(), 0);
  EXPECT_EQ(in, out);
}

TEST(Baselines, AllGatherBringsEachRankTheKeysOfItsGroup) {
  const Traffic traffic = all_gather_traffic(pack_in_order({100, 300}, 4), 2, {8, 1, 2, 8, 4});
  EXPECT_EQ(traffic.k, 400);
  EXPECT_EQ(traffic.v, 800);
  EXPECT_EQ(traffic.q + traffic.o + traffic.lse, 0);
  EXPECT_EQ(traffic.max_receive(), 300);
}

}  // namespace
}  // namespace distca
