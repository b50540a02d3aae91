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

}  // namespace distca
