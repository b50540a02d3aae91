// One training step of a cluster under one policy: its plans, its time and where the time goes, its memory.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster.h"
#include "sim/timeline.h"

namespace distca {

/// Documents of a step: of each micro-batch, of each of its nano-batches, in row order.
using StepDocuments = std::vector<std::vector<std::vector<int64_t>>>;

struct StepResult {
  double seconds = 0;
  double without_exchanges = 0;  // seconds of the same plans if exchanges and gathers took no time
  double balanced = 0;           // the bound: balanced_seconds()
  double busy_mean = 0;          // seconds a rank computes, collectives of tensor parallelism included
  double compute_max_over_mean = 0, tokens_max_over_mean = 0;
  double exchanged_bytes = 0;              // forward and backward, all layers, by all devices
  double memory_max = 0, memory_mean = 0;  // bytes of a device
  std::vector<double> memory, busy;        // of each rank
  double plan_seconds = 0;                 // wall time of planning

  double exposed_share() const { return (seconds - without_exchanges) / seconds; }
  double imbalance_share() const { return (without_exchanges - balanced) / seconds; }
  double idle_share() const { return 1 - busy_mean / seconds; }
};

/// What a step looks like inside.
struct StepDetail {
  std::vector<TimelineEvent> events;
  /// [from][to]: bytes that a rank's device sends another's, forward and backward, all layers; of
  /// disaggregated attention.
  std::vector<std::vector<double>> bytes;
};

/// Plans and runs a step, and fills `detail` where given.
/// Throws InputError for a set-up or a policy that can't be (sim/cluster.h).
StepResult simulate_step(const ClusterSetup& setup, const PolicyChoice& choice,
                         const StepDocuments& documents, StepDetail* detail = nullptr);

/// The bound: no policy takes less. All ranks share all work evenly all the time, with exchanges hidden; a
/// pipeline takes at least as long as its linear layers need to fill it and drain.
double balanced_seconds(const ClusterSetup& setup, const StepDocuments& documents);

/// Flops of a step without recomputation: 6 a weight (the head's among them, embeddings not) and token, and
/// 12 · heads · head_dim · layers a causal pair.
double model_flops(const ModelShape& model, const StepDocuments& documents);

}  // namespace distca
