#include "train/rank_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/check.h"
#include "comm/threads.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankGrid, WorldSizeIsTheProductOfItsParts) {
  const RankGrid grid = make_grid(2 * (3 * 2 + 1), 2, 2, 1);
  EXPECT_EQ(grid.dp, 3);
  EXPECT_EQ(grid.world_size(), 14);
  EXPECT_EQ(grid.attention_ranks(), 7);
}

TEST(RankGrid, EveryRankHasOnePlaceAndServersComeLast) {
  const RankGrid grid = make_grid(14, 2, 2, 1);
  std::set<std::pair<int32_t, int32_t>> places;
  for (int32_t rank = 0; rank < 14; ++rank) {
    const RankPlace place = place_of(grid, rank);
    EXPECT_EQ(grid.world_rank(place.attention_rank, place.tp_rank), rank);
    EXPECT_EQ(place.server, rank >= 12);
    if (!place.server) {
      EXPECT_EQ(place.stage * grid.dp + place.dp_rank, place.attention_rank);
    }
    places.insert({place.attention_rank, place.tp_rank});
  }
  EXPECT_EQ(places.size(), 14U);
}

std::string refusal(int32_t ranks, int64_t pp, int64_t tp, int64_t servers) {
  try {
    make_grid(ranks, pp, tp, servers);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(RankGrid, RanksThatCannotBeDividedAreRefusedWithAllNumbers) {
  EXPECT_EQ(refusal(7, 1, 2, 0), "7 ranks don't divide into tensor-parallel groups of parallel.tp = 2");
  EXPECT_THAT(refusal(8, 2, 2, 1), ::testing::AllOf(HasSubstr("8 ranks"), HasSubstr("parallel.tp = 2"),
                                                    HasSubstr("parallel.servers = 1"), HasSubstr("pp = 2")));
  EXPECT_NE(refusal(4, 1, 1, 4), "");
  EXPECT_NE(refusal(2, 1, 1, 9), "");
  EXPECT_NE(refusal(2, 4, 1, 0), "");
}

TEST(RankGrid, LayersAreSpreadEvenlyAndGivenOnesAreChecked) {
  EXPECT_THAT(layers_of_stages(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(layers_of_stages(4, 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(layers_of_stages(4, 2, {1, 3}), ElementsAre(1, 3));
  EXPECT_THROW(layers_of_stages(3, 4), InputError);
  EXPECT_THROW(layers_of_stages(4, 2, {1, 2}), InputError);
  EXPECT_THROW(layers_of_stages(4, 2, {4, 0}), InputError);
  EXPECT_THROW(layers_of_stages(4, 2, {1.5, 2.5}), InputError);
}

TEST(RankGrid, FabricsHoldTheRanksTheyAreNamedFor) {
  const RankGrid grid = make_grid(10, 2, 2, 1);  // dp 2
  run_thread_ranks(10, {}, [&](Fabric& world) {
    const RankFabrics fabrics = make_fabrics(world, grid, true);
    const RankPlace place = place_of(grid, world.rank());
    EXPECT_EQ(fabrics.attention->world_size(), 5);
    EXPECT_EQ(fabrics.attention->rank(), place.attention_rank);
    EXPECT_EQ(fabrics.tensor->world_size(), 2);
    EXPECT_EQ(fabrics.tensor->rank(), place.tp_rank);
    EXPECT_EQ(fabrics.model->world_size(), place.server ? 2 : 8);
    EXPECT_EQ(fabrics.data->world_size(), place.server ? 1 : 2);
    if (!place.server) {
      EXPECT_EQ(fabrics.data->rank(), place.dp_rank);
      EXPECT_EQ(fabrics.ends->world_size(), 2);
      EXPECT_EQ(fabrics.ends->rank(), place.stage);
    }
  });
}

}  // namespace
}  // namespace distca
