// What is simulated: a model on a cluster, how its devices divide the work, and the policies to compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/policy.h"
#include "sim/device_profile.h"
#include "sim/model_shape.h"
#include "sim/step_costs.h"

namespace distca {

enum class Overlap {
  kPingPong,  // exchanges run beside the other nano-batch's compute
  kSingle,    // one stream: nothing runs beside an exchange
  kSignal,    // exchanges move nothing and take their latency alone
};

/// A rank is a tensor-parallel group; `ranks()` of them hold tokens in each pipeline stage.
struct ClusterSetup {
  ModelShape model;
  DeviceProfile profile;
  int64_t gpus = 0, gpus_per_node = 8, tp = 8, pp = 1;
  int64_t servers = 0;  // ranks that only serve attention
  int64_t context = 0;  // tokens of a chunk of packed documents, which none is longer than
  int64_t tokens = 0;   // of a global batch
  int64_t micro_batches = 1, nano_batches = 2;
  double tolerance = 0.1;
  double min_gain = 0;
  int64_t search_moves = 500;  // of each plan: a tenth of the runtime's, for a few percent more bytes
  bool resend = false;
  Overlap overlap = Overlap::kPingPong;
  Recompute recompute = Recompute::kSelective;
  bool shard_optimizer = true;
  double memory_limit = 0;  // bytes of a device; 0: the profile's

  int64_t ranks() const { return (gpus / tp - servers) / pp; }
  int64_t all_ranks() const { return gpus / tp; }
  double memory_bytes() const { return memory_limit > 0 ? memory_limit : profile.memory_bytes; }
};

struct PolicyChoice {
  Policy policy = Policy::kCad;
  LayoutKind layout = LayoutKind::kFixed;
  int64_t cp = 1;

  std::string name() const;  // "cad", "cad-free", "wlb-4", …
};

/// "cad", "cad-free", "none", "wlb-4", "cp-seq-8", …: a degree may follow wlb, cp and cp-seq; without one
/// they take `cp`. Throws InputError for another name.
PolicyChoice policy_choice(const std::string& name, int64_t cp);

/// Throws InputError that says in one line what can't be: devices that aren't a product of the degrees, heads
/// that tp doesn't divide, tokens that don't fill the chunks of a nano-batch, a model that doesn't fit.
void check_cluster(const ClusterSetup& setup);
void check_policy(const ClusterSetup& setup, const PolicyChoice& choice);

/// Heads of one device's core attention.
LayerHeads device_heads(const ClusterSetup& setup);

/// Bytes of weights (2 a parameter), gradients (4) and AdamW's state (12, over data-parallel ranks where
/// sharded) on one device.
double state_bytes(const ClusterSetup& setup);

/// Bytes of one token's activations in one layer on one device: of all matrix products' inputs, or with
/// recomputation of the layer's input, the MLP's and attention's output alone.
double activation_bytes(const ClusterSetup& setup);

}  // namespace distca
