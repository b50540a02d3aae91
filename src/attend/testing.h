// For tests: random batches and plans with every kind of cut, and what the layer must give, from PyTorch's
// own attention document by document.
#pragma once

#include <ATen/core/Tensor.h>

#include "attend/core_attention.h"
#include "plan/plan.h"

namespace distca::testing {

/// Tokens of all documents end to end, in document order, and their gradients.
struct DenseTensors {
  at::Tensor q, k, v, dout;  // inputs: (tokens, heads or kv_heads, head_dim)
  at::Tensor o, lse;         // (tokens, heads, head_dim), (tokens, heads)
  at::Tensor dq, dk, dv;
};

/// Random normal inputs for `tokens` tokens.
DenseTensors random_inputs(int64_t tokens, const AttentionShape& shape, at::ScalarType dtype, uint64_t seed);

/// Fills o, lse, dq, dk, dv by at::scaled_dot_product_attention per document, causal, in the type of q.
void dense_attention(const std::vector<int64_t>& doc_lengths, const AttentionShape& shape,
                     DenseTensors& tensors);

/// Row of the dense tensors behind each row of the rank's token buffer; −1 where it is padding.
std::vector<int64_t> dense_rows(const Layout& layout, int32_t rank);

/// The rank's buffer: its rows of `dense`, zeros on padding.
at::Tensor home_rows(const at::Tensor& dense, const std::vector<int64_t>& rows);

/// Largest |home − dense| over the rank's tokens, divided by the largest |dense| (at least .01).
double relative_error(const at::Tensor& home, const at::Tensor& dense, const std::vector<int64_t>& rows);

/// One rank's results of the layer, forward and backward, brought to the CPU from the runtime's device.
struct HomeTensors {
  at::Tensor o, lse, dq, dk, dv;
};
HomeTensors run_layer(AttentionRuntime& runtime, const BatchTables& tables, const AttentionShape& shape,
                      const DenseTensors& dense, const std::vector<int64_t>& rows);

}  // namespace distca::testing
