#include "train/survivors.h"

#include <algorithm>

namespace distca {

std::vector<Standing> gather_standings(Fabric& world, const Standing& own) {
  std::vector<Standing> all(static_cast<size_t>(world.world_size()));
  world.all_gather(&own, all.data(), sizeof own, "where ranks stand");
  return all;
}

StepsDone steps_done(const std::vector<Standing>& ranks) {
  StepsDone done;
  for (const Standing& rank : ranks)
    if (rank.server == 0 && rank.updates > done.steps) done = {rank.updates, rank.grad_norm};
  return done;
}

RankGrid grid_left(const RankGrid& grid, const std::vector<Standing>& ranks, int32_t tp_rank) {
  RankGrid out = grid;
  out.servers = static_cast<int32_t>(std::count_if(ranks.begin(), ranks.end(), [&](const Standing& rank) {
    return rank.server != 0 && rank.tp_rank == tp_rank;
  }));
  return out;
}

RankPlace place_left(const RankPlace& place, const std::vector<Standing>& ranks) {
  RankPlace out = place;
  out.attention_rank = static_cast<int32_t>(std::count_if(ranks.begin(), ranks.end(), [&](const Standing& r) {
    return r.tp_rank == place.tp_rank && r.attention_rank < place.attention_rank;
  }));
  return out;
}

std::vector<int32_t> attention_ranks_left(const std::vector<Standing>& ranks, int32_t tp_rank) {
  std::vector<int32_t> left;
  for (const Standing& rank : ranks)
    if (rank.tp_rank == tp_rank) left.push_back(rank.attention_rank);
  std::sort(left.begin(), left.end());
  return left;
}

bool can_go_on_without(const RankGrid& grid, const std::vector<int32_t>& lost) {
  std::vector<int32_t> left(static_cast<size_t>(grid.tp), grid.servers);
  for (const int32_t rank : lost) {
    const RankPlace place = place_of(grid, rank);
    if (!place.server || --left[static_cast<size_t>(place.tp_rank)] == 0) return false;
  }
  return true;
}

}  // namespace distca
