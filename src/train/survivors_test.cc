#include "train/survivors.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Survivors, StepsAreDoneThatAnyRankWithTheModelHasBegunToUpdateBy) {
  std::vector<Standing> ranks = {{0, 0, 0, 4, 1.5}, {0, 0, 1, 5, 2.5}, {1, 0, 2, 6, 0}};
  EXPECT_EQ(steps_done(ranks).steps, 5);  // the server's count says nothing
  EXPECT_EQ(steps_done(ranks).grad_norm, 2.5);
  ranks[1].updates = 4;
  EXPECT_EQ(steps_done(ranks).steps, 4);
  EXPECT_EQ(steps_done({{0, 0, 0, 0, 0}}).steps, 0);
}

TEST(Survivors, ServersMoveUpWithinTheirTensorParallelIndex) {
  // dp 1, tp 2, three servers an index; world ranks 0 to 7, of which 2 (index 0) and 5 (index 1) are gone.
  const RankGrid grid = make_grid(8, 1, 2, 3);
  std::vector<Standing> ranks;
  for (const int32_t rank : {0, 1, 3, 4, 6, 7}) {
    const RankPlace place = place_of(grid, rank);
    ranks.push_back({place.server, place.tp_rank, place.attention_rank, 0, 0});
  }
  EXPECT_EQ(grid_left(grid, ranks, 0).servers, 2);
  EXPECT_EQ(grid_left(grid, ranks, 1).servers, 2);
  EXPECT_EQ(attention_ranks_left(ranks, 0), (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(attention_ranks_left(ranks, 1), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(place_left(place_of(grid, 0), ranks).attention_rank, 0);
  EXPECT_EQ(place_left(place_of(grid, 4), ranks).attention_rank, 1);
  EXPECT_EQ(place_left(place_of(grid, 6), ranks).attention_rank, 2);
  EXPECT_EQ(place_left(place_of(grid, 3), ranks).attention_rank, 1);
  EXPECT_EQ(place_left(place_of(grid, 7), ranks).attention_rank, 2);
  EXPECT_TRUE(place_left(place_of(grid, 7), ranks).server);
}

TEST(Survivors, ARunGoesOnWhileEveryIndexHasAServer) {
  const RankGrid grid = make_grid(6, 1, 2, 2);  // servers: ranks 2 and 4 of index 0, 3 and 5 of index 1
  EXPECT_TRUE(can_go_on_without(grid, {2}));
  EXPECT_TRUE(can_go_on_without(grid, {2, 5}));
  EXPECT_FALSE(can_go_on_without(grid, {2, 4}));
  EXPECT_FALSE(can_go_on_without(grid, {5, 2, 3}));
  EXPECT_FALSE(can_go_on_without(grid, {1}));
  EXPECT_FALSE(can_go_on_without(make_grid(3, 1, 1, 1), {2}));
  EXPECT_FALSE(can_go_on_without(make_grid(3, 1, 1, 0), {2}));
}

}  // namespace
}  // namespace distca
