// Partial outputs of split keys become one, as tensor operations on any device:
// O = Σ w_i O_i / Σ w_i with w_i = exp(LSE_i − max LSE), LSE = max + log Σ w_i; see kernel/merge.h for the
// plain loop.
#pragma once

#include "attend/rank_tables.h"

namespace distca {

struct Partials {
  at::Tensor o;    // (parts + 1, heads, head_dim); the last row is 0
  at::Tensor lse;  // (parts + 1, heads), float32 or float64; the last row is −inf
};

/// Writes rows of `table` into `o` (rows, heads, head_dim) and `lse` (rows, heads): copies where a row has
/// one part, else sums in the type of the LSE, in the order of the parts. A row of no parts gets 0 and −inf.
void merge_rows(const MergeTable& table, const Partials& parts, at::Tensor& o, at::Tensor& lse);

}  // namespace distca
