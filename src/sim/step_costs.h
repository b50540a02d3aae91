// Seconds of the parts of one layer, for a tensor-parallel group: what a profile's constants come to for a
// model. Recorded runs and simulated clusters are both predicted from these.
#pragma once

#include "sim/device_profile.h"
#include "sim/model_shape.h"

namespace distca {

/// Work of core attention in row·keys: each query row, rows rounded up to tiles of 128, times the keys it
/// sees on average and the start-up keys of the profile. The piece is rows [begin, end) of a document, with
/// their whole causal prefix.
double attention_work(int64_t begin, int64_t end, double startup_keys);

/// Rows that see `keys` keys each on average.
double attention_work(int64_t rows, double keys, double startup_keys);

/// What backward computes again: nothing, or with kSelective all but core attention, whose outputs are kept.
enum class Recompute { kNone, kSelective };

struct StepCosts {
  // Per token and layer. Matrix products: 2 flops a weight forward, 4 backward and 2 more where
  // they are recomputed, at the fitted efficiency.
  // Tensor parallelism: a gather and a scatter of the token around attention and around the MLP, exposed.
  double linear_forward = 0, linear_backward = 0;
  double tp_forward = 0, tp_backward = 0;
  // Per row·key of a layer: 4 flops an element of the group's heads.
  double attention_forward = 0, attention_backward = 0;
  // Context parallelism: per token that a device lacks, K and V forward and their gradients backward.
  double gather_forward = 0, gather_backward = 0;
  // Per iteration.
  double update = 0;

  double layer_per_token() const { return linear_forward + linear_backward + tp_forward + tp_backward; }
  double attention() const { return attention_forward + attention_backward; }
  double gather() const { return gather_forward + gather_backward; }
};

/// `pp` stages share the weights. Throws InputError when tp doesn't divide the heads.
StepCosts step_costs(const ModelShape& model, const DeviceProfile& profile, int64_t tp, int64_t pp,
                     Recompute recompute);

}  // namespace distca
