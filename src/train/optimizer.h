// AdamW with warm-up, cosine and clipping by the global norm. Every rank holds all parameters and makes the
// same update, so their bits stay equal without being compared.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "train/config.h"
#include "train/flat_parameters.h"

namespace distca {

/// AdamW's state; buffers are laid out as FlatParameters::values.
struct AdamState {
  at::Tensor exp_avg, exp_avg_sq;
  int64_t updates = 0;
};

AdamState make_adam_state(const FlatParameters& parameters);

/// Of update `step`, counted from 0: rises linearly to `lr` over `warmup` steps, then falls along a half
/// cosine to `min_lr` at step `steps` − 1.
double learning_rate(const Config::Train& config, int64_t step);

/// √Σg² in float64.
double gradient_norm(const at::Tensor& gradients);

/// Scales the gradients to norm `clip` where theirs, `norm`, is larger. A clip of 0 leaves them alone.
void clip_gradients(FlatParameters& parameters, double norm, double clip);

/// One update (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2; the decay is
/// lr · weight_decay · value). Norm weights, the only vectors of the model, have no decay.
void adam_update(FlatParameters& parameters, AdamState& state, const Config::Train& config, double lr);

}  // namespace distca
