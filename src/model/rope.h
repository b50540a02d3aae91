// Rotary positions: each pair (i, i + head_dim/2) of a head is turned by its token's position times a
// frequency of its own (RoFormer, arXiv 2104.09864; "rotate-halves" pairing as in Hugging Face's Llama).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/config.h"

namespace distca {

/// What the rows of one nano-batch are turned by; each (rows, 1, head_dim / 2). Made once, used in every
/// layer.
struct Rope {
  at::Tensor cos, sin;
};

/// Radians per position, head_dim / 2 of them: theta^(-2i / head_dim), then Llama 3's scaling where the model
/// has it.
std::vector<double> rope_frequencies(const LlamaConfig& config);

/// `positions` are int64 (rows), each a token's position within its document. Angles, cosines and sines are
/// computed in float64 and cast to `dtype` once, so that far positions lose nothing. On the device of
/// `positions`.
Rope make_rope(const LlamaConfig& config, const at::Tensor& positions, at::ScalarType dtype);

/// `x` (rows, heads, head_dim), turned. Differentiable.
at::Tensor apply_rope(const at::Tensor& x, const Rope& rope);

}  // namespace distca
