// Memory of each rank, in bytes of one of its devices: weights, gradients and optimizer; activations of the
// micro-batches in flight; keys and values held for attention; exchange buffers.
#pragma once

#include <vector>

#include "sim/step_plans.h"

namespace distca {

/// Same-phase ticks: stage s has up to 2·(pp - 1 - s) + 1 micro-batches in flight. With `keep` servers hold
/// the Q, K and V they received in all layers until backward.
std::vector<double> memory_of_disaggregated(const ClusterSetup& setup, const DisaggregatedPlans& plans);

/// 1F1B: stage s has up to pp - s micro-batches in flight; the gathered K and V are those of one layer.
std::vector<double> memory_at_home(const ClusterSetup& setup, const std::vector<PartWork>& micro_batches);

}  // namespace distca
