// AdamW with warm-up, cosine and clipping by the global norm. Ranks that hold the same parameters make the
// same update, so their bits stay equal without being compared; or each keeps the state of a slice of them
// alone, updates that and gives it to the others, with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/fabric.h"
#include "train/config.h"
#include "train/flat_parameters.h"

namespace distca {

/// Where slices of FlatParameters::values begin and end, `slices` + 1 places: as even as they go in runs of
/// 64 elements, so that an update's vector instructions treat an element alike however it is cut.
std::vector<int64_t> optimizer_slices(const FlatParameters& parameters, int64_t slices);

/// AdamW's state of elements [begin, end) of FlatParameters::values.
struct AdamState {
  at::Tensor exp_avg, exp_avg_sq;  // (end − begin)
  int64_t updates = 0;
  int64_t begin = 0, end = 0;
};

/// All zeros, of slice `slice` of optimizer_slices().
AdamState make_adam_state(const FlatParameters& parameters, int64_t slices = 1, int64_t slice = 0);

/// Completes a buffer, in place, of which each rank of the fabric has elements [slices[rank], slices[rank +
/// 1]). A collective.
void exchange_slices(Fabric& fabric, const at::Tensor& buffer, const std::vector<int64_t>& slices,
                     const std::string& name);

/// Of update `step`, counted from 0: rises linearly to `lr` over `warmup` steps, then falls along a half
/// cosine to `min_lr` at step `steps` − 1.
double learning_rate(const Config::Train& config, int64_t step);

/// √Σg² of each in float64; the host waits for their device once.
std::vector<double> gradient_norms(const std::vector<at::Tensor>& gradients);
/// Of one.
double gradient_norm(const at::Tensor& gradients);

/// Scales the gradients to norm `clip` where theirs, `norm`, is larger. A clip of 0 leaves them alone.
void clip_gradients(FlatParameters& parameters, double norm, double clip);

/// One update of the elements that the state is of (Loshchilov and Hutter, "Decoupled Weight Decay
/// Regularization", algorithm 2; the decay is lr · weight_decay · value). Norm weights, the only vectors of
/// the model, have no decay.
void adam_update(FlatParameters& parameters, AdamState& state, const Config::Train& config, double lr);

}  // namespace distca
