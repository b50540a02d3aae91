// Partial outputs of split keys become one, on any device:
// O = Σ w_i O_i / Σ w_i with w_i = exp(LSE_i − max LSE), LSE = max + log Σ w_i. On the CPU by the loops of
// kernel/merge.h, which go over memory once; elsewhere as tensor operations.
#pragma once

#include "attend/rank_tables.h"
#include "attend/rows.h"

namespace distca {

/// Numbered as the table says; its row `empty` is 0 and −inf where any row of the table is split.
struct Partials {
  RowPair o;    // (…, heads, head_dim)
  RowPair lse;  // (…, heads), float32 or float64
};

/// Writes the rows of `table` into `o` (·, heads, head_dim) and `lse` (·, heads), which may hold parts too:
/// copies where a row has one part, else sums in the type of the LSE, in the order of the parts. A row of no
/// parts gets 0 and −inf.
void merge_rows(const MergeTable& table, const Partials& parts, at::Tensor& o, at::Tensor& lse);
/// The split rows alone, as tensor operations.
void merge_split_rows(const MergeTable& table, const Partials& parts, at::Tensor& o, at::Tensor& lse);

/// Sums of a row's parts in their order, written to the table's rows of `out` (·, …), which may hold parts
/// too: added in `sum_dtype` where there are several, copied where there is one, 0 where there is none. Row
/// `empty` of the parts is 0 where any row of the table is split.
void sum_rows(const MergeTable& table, const RowPair& parts, at::ScalarType sum_dtype, at::Tensor& out);
/// The split rows alone, as tensor operations.
void sum_split_rows(const MergeTable& table, const RowPair& parts, at::ScalarType sum_dtype, at::Tensor& out);

}  // namespace distca
