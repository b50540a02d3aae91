// How many bytes the rows of one attention layer have, which is what planning weighs against compute.
#pragma once

#include <cstdint>

namespace distca {

/// Heads of one layer's core attention as one rank sees them (a tensor-parallel rank sees its own).
struct LayerHeads {
  int64_t heads = 32, kv_heads = 8, head_dim = 128;  // Llama 3 8B
  int64_t element_bytes = 2;                         // bf16
};

/// Bytes of one row. K and V are apart because a runtime sends them so; plans always move both.
struct RowBytes {
  int64_t q = 0, k = 0, v = 0, o = 0;
  int64_t lse = 0;  // only rows whose output is partial

  int64_t kv() const { return k + v; }
};

/// Log-sum-exp is 4 bytes a head, 8 where elements have 8 bytes.
inline RowBytes row_bytes(const LayerHeads& shape) {
  const int64_t q = shape.heads * shape.head_dim * shape.element_bytes;
  const int64_t k = shape.kv_heads * shape.head_dim * shape.element_bytes;
  return {q, k, k, q, shape.heads * (shape.element_bytes == 8 ? 8 : 4)};
}

}  // namespace distca
