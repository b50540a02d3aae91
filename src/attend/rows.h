// Rows of tensors, gathered from two of them at once: what arrived and what never left. On any device; on the
// CPU at the speed of memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace distca {

/// Two tensors whose rows are numbered through; `second` may be undefined.
struct RowPair {
  at::Tensor first, second;
};

/// Row i of `out` becomes row index[i] of `rows`. All are contiguous, of one type and one shape but for the
/// number of rows.
void gather_rows(const at::Tensor& out, const RowPair& rows, const at::Tensor& index);

/// Σ over the last dimension of a · b, in `dtype`.
at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype);

}  // namespace distca
