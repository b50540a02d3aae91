// Ranks that agree on where they stand after some dedicated servers were lost. A server holds nothing that
// outlives a step, so the others need no state from it; what they need is to agree on whether the step under
// way had been done. Its update begins when a rank has the norm of the gradient, which is a sum over all
// ranks that hold the model: so when it has begun on one of them, all have their gradients, and each can do
// it on its own. When it hasn't begun anywhere, parameters and optimizer are those of the step's beginning.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/fabric.h"
#include "train/rank_grid.h"

namespace distca {

/// Where a rank stands: steps whose update is in its parameters (the first of them counted too), and the norm
/// of the last one's gradient.
struct Standing {
  int32_t server = 0;                       // 1: a dedicated one, which has nothing to update
  int32_t tp_rank = 0, attention_rank = 0;  // its place so far
  int64_t updates = 0;
  double grad_norm = 0;
};

/// Of all ranks, by rank. A collective.
std::vector<Standing> gather_standings(Fabric& world, const Standing& own);

/// Steps that are done: those that any rank has begun to update its parameters by; and the norm of the last
/// one's gradient.
struct StepsDone {
  int64_t steps = 0;
  double grad_norm = 0;
};
StepsDone steps_done(const std::vector<Standing>& ranks);

/// The grid as ranks of tensor-parallel index `tp_rank` see it with the servers that are left to them, and
/// the place in it of a rank that had `place`: servers move up.
RankGrid grid_left(const RankGrid& grid, const std::vector<Standing>& ranks, int32_t tp_rank);
RankPlace place_left(const RankPlace& place, const std::vector<Standing>& ranks);
/// The attention ranks of that index that are left, by the places they had: the number of each in grid_left()
/// is its index here.
std::vector<int32_t> attention_ranks_left(const std::vector<Standing>& ranks, int32_t tp_rank);

/// Whether a run can go on without those ranks: they were dedicated servers, and every tensor-parallel index
/// has one left.
bool can_go_on_without(const RankGrid& grid, const std::vector<int32_t>& lost);

}  // namespace distca
