// The order in which the nano-batches of a micro-batch go through the model. Interleaved, the exchanges of
// one run beside the compute of the others:
//
//   CI(A) | dispatch(A) ∥ CI(B) | attend(A) ∥ dispatch(B) | collect(A) ∥ attend(B) | CI(A) ∥ collect(B) | …
//
// and autograd, which takes the newest operation first, runs backward in the mirrored order.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "attend/core_attention.h"
#include "model/llama.h"
#include "train/prepared_step.h"

namespace distca {

/// Core attention of this model's layers.
AttentionShape attention_shape(const LlamaConfig& config);

/// Forward of the nano-batches, interleaved. Returns the sum of this rank's cross-entropies of each: float64
/// scalars that backward can start from. Every rank calls it with as many nano-batches; `first` numbers them
/// in error messages.
std::vector<at::Tensor> forward_losses(const LlamaParameters& model, AttentionRuntime& runtime,
                                       std::span<const PreparedNanoBatch> nano_batches, int64_t first);

}  // namespace distca
