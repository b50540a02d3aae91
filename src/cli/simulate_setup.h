// From a configuration to what is simulated.
#pragma once

#include <string>
#include <vector>

#include "sim/study.h"
#include "train/config.h"

namespace distca {

/// The sizes of a preset or a config.json.
ModelShape find_model_shape(const std::string& name);

/// Throws InputError for what can't be simulated; `unchecked_setup` leaves that to its caller, who changes
/// degrees.
ClusterSetup cluster_setup(const Config& config);
ClusterSetup unchecked_setup(const Config& config);

/// Policies by name. None given: fixed packing, per-sequence and WLB-LLM's context parallelism of degrees up
/// to 16 that divide the ranks, and disaggregation with a fixed and a free layout.
std::vector<PolicyChoice> policy_choices(const ClusterSetup& setup, const Config& config,
                                         const std::vector<std::string>& names);

/// Documents of `cluster.samples` steps: of `cluster.distribution`, which is "wlbllm" or "prolong", these
/// with
/// "-recorded" for the order of the recorded runs, or a file of lengths, one a line; else of the dataset
/// `data.path`.
std::vector<StepDocuments> study_documents(const ClusterSetup& setup, const Config& config);

}  // namespace distca
