// Cross-entropy of a linear head without ever holding all logits: rows go through in chunks, and the
// gradients of a chunk are taken while its logits are there. At 128K vocabulary entries the logits of a long
// chunk would be the largest tensor of the run.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/tensor_group.h"

namespace distca {

/// Logits that live at once on a rank, in elements, unless told otherwise.
inline constexpr int64_t kLogitsAtOnce = int64_t{1} << 26;

/// Σ over rows with a target of −log softmax(x · weightᵀ)[target], natural logarithm: a float64 scalar, 0
/// when no row has a target. `x` is (rows, hidden), `weight` (vocabulary, hidden), `targets` int64 (rows),
/// negative where a row predicts nothing; such rows must still be finite. Softmax and sums are in float32
/// (float64 for float64 inputs). Differentiable once in `x` and `weight`.
///
/// With a group, `x` is this rank's rows, `weight` its slice of the vocabulary, `targets` are those of all
/// rows, in the whole vocabulary. The result is all rows' sum, the same on every rank; from the same gradient
/// of it each rank gets the whole gradient of its `x` and `weight`.
at::Tensor linear_cross_entropy(TensorGroup* group, const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t logits_at_once = kLogitsAtOnce);

}  // namespace distca
