// Partial outputs of split keys become one: O = Σ w_i O_i / Σ w_i with w_i = exp(LSE_i − max LSE), LSE = max
// + log Σ w_i. Empty partials (LSE −inf) contribute nothing; with all of them empty O is 0 and LSE −inf.
#pragma once

#include <cstdint>

#include "kernel/attention.h"

namespace distca {

/// Merges row `part_rows[offsets[i]] … part_rows[offsets[i+1]-1]` of the partials into row i of the outputs,
/// in that order, in the accumulator type. `o` of (·, heads, head_dim), `lse` of (·, heads).
template <typename T>
void merge_partials(int64_t rows, const int64_t* offsets, const int64_t* part_rows, int64_t heads,
                    int64_t head_dim, const T* part_o, const Accumulator<T>* part_lse, T* o,
                    Accumulator<T>* lse);

/// Rows that are made of parts: row out_rows[i] of so many parts[i · most + j], padded with `empty`, which
/// stands for none.
struct SplitRows {
  const int64_t* out_rows = nullptr;
  const int64_t* parts = nullptr;
  int64_t rows = 0, most = 0, empty = 0;
};

/// merge_partials for parts that stand in two buffers. The outputs may be one of these, row for row.
template <typename T>
void merge_split_rows(const SplitRows& split, int64_t heads, int64_t head_dim,
                      const TensorRows<const T>& part_o, const TensorRows<const Accumulator<T>>& part_lse,
                      T* o, Accumulator<T>* lse);

/// Row out_rows[i] of `out` becomes the sum of its parts, in their order, in the accumulator type; as above.
template <typename T>
void sum_split_rows(const SplitRows& split, int64_t elements, const TensorRows<const T>& parts, T* out);

}  // namespace distca
