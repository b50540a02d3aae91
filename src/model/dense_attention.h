// Core attention the slow, obvious way: all scores of a document at once. The reference that tests hold the
// disaggregated attention against.
#pragma once

#include <cstdint>
#include <vector>

#include "model/llama.h"

namespace distca {

/// softmax(Q Kᵀ / √head_dim under the causal mask) V for each of the documents that lie end to end in the
/// rows; rows after the last document give zeros. (rows, heads, head_dim), differentiable.
at::Tensor dense_attention(const Qkv& qkv, const std::vector<int64_t>& doc_lengths);

}  // namespace distca
