// The layers of one forward or backward pass on every rank's streams: ping-pong between nano-batches for
// disaggregated attention, gather and attend for policies that compute at home.
#pragma once

#include <vector>

#include "sim/part_work.h"
#include "sim/timeline.h"

namespace distca {

struct Pass {
  bool backward = false;
  bool free_exchanges = false;  // exchanges and gathers take no time: what is left is compute and imbalance
  int64_t layers = 0;           // one after the other
  int64_t first_layer = 0;      // as events call them
  int64_t first_part = 0;
};

/// Runs the nano-batches `parts` through the pass. `ready` says when each rank of the cluster may begin;
/// returns when each has done its last.
std::vector<double> run_disaggregated(const ClusterSetup& setup, const StepCosts& costs, const Pass& pass,
                                      const std::vector<const PartWork*>& parts,
                                      const std::vector<double>& ready, Timeline& timeline);

/// The same for ranks [first, first + setup.ranks()), in groups of `group` that wait for each other in each
/// layer. `ready` and the result are of those ranks.
std::vector<double> run_at_home(const StepCosts& costs, const Pass& pass, const PartWork& part, int64_t group,
                                int64_t first, const std::vector<double>& ready, Timeline& timeline);

/// Share of a layer's matrix products that stand before core attention.
double share_before_attention(const ModelShape& model);

}  // namespace distca
