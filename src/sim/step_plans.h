// The plans of one step, as work of its passes.
#pragma once

#include <vector>

#include "sim/part_work.h"
#include "sim/step.h"

namespace distca {

/// Attention times of a device as a grid that planning interpolates.
AttentionTimes attention_times(const ClusterSetup& setup, const StepCosts& costs, bool backward);

/// Disaggregated: a pass is a tick, with all stages' nano-batches. [tick][nano-batch].
struct DisaggregatedPlans {
  std::vector<std::vector<PartWork>> forward, backward;
};

/// Without a pipeline a tick is a micro-batch and backward has the plans of forward. With one, tick t holds
/// micro-batch t - s on stage s (backward: t - (pp - 1 - s)); stages without one serve attention.
DisaggregatedPlans plan_disaggregated(const ClusterSetup& setup, const PolicyChoice& choice,
                                      const StepDocuments& documents, const StepCosts& costs);

/// At home: the work of each micro-batch, whose nano-batches are one. `wlb` packs the whole step.
std::vector<PartWork> plan_at_home(const ClusterSetup& setup, const PolicyChoice& choice,
                                   const StepDocuments& documents);

}  // namespace distca
