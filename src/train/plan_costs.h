// What a run's plans go by: what attention tasks and layers cost, and what links carry. With a profile all of
// it is in picoseconds, and exchanges are weighed against the compute that they hide behind; without one
// costs are pairs of tokens, which no link's bytes can be compared with.
#pragma once

#include "model/config.h"
#include "plan/profile.h"
#include "train/config.h"
#include "train/tick_plans.h"

namespace distca {

/// What a model's layers cost in pairs, where a product of matrices runs at the rate of attention: a weight
/// is two FLOPs a row, a pair 4 · heads · head_dim.
StageWork stage_work(const LlamaConfig& config);

/// The same in picoseconds of one tensor-parallel rank, for chunks of so many rows: measured times of the
/// profile's model, by the number of weights where that is another. A profile without layers counts them in
/// pairs, at the rate of large tasks. Throws InputError when the profile's model can't be found.
StageWork stage_work(const LlamaConfig& config, const Profile& profile, const TaskCost& cost, int64_t rows,
                     int32_t tp);

/// The slowest link that an exchange takes: that of [link] where it limits bytes, with a node's shared by its
/// ranks; else the slower one of the profile. bytes_per_s 0: not limited.
LinkTimes slowest_link(const Config& config, const Links& links, int32_t ranks);

/// Fills in costs, CI, links and the least gain. Throws InputError, with the key, for a profile that can't be
/// read or has no such heads, and for a min_gain without what it needs.
void set_costs(const Config& config, const LlamaConfig& model, const LayerHeads& heads,
               TickPlanOptions& options);

}  // namespace distca
