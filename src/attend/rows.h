// Rows of tensors, gathered from two of them at once: what arrived and what never left. On any device; on the
// CPU at the speed of memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace distca {

/// Two tensors whose rows are numbered through; `second` may be undefined.
struct RowPair {
  at::Tensor first, second;

  RowPair() = default;
  RowPair(at::Tensor first, at::Tensor second = {})  // NOLINT: one tensor is the usual case
      : first(std::move(first)), second(std::move(second)) {}

  bool defined() const { return first.defined(); }
  int64_t rows() const { return first.size(0) + (second.defined() ? second.size(0) : 0); }
  /// A view of rows that stand in one of the two.
  at::Tensor narrow(int64_t begin, int64_t count) const;
};

/// Row i of `out` becomes row index[i] of `rows`. All are contiguous, of one type and one shape but for the
/// number of rows.
void gather_rows(const at::Tensor& out, const RowPair& rows, const at::Tensor& index);

/// Row to[i] of `out` becomes row from[i] of `rows`; what is written is none of what is read.
void move_rows(const at::Tensor& out, const at::Tensor& to, const RowPair& rows, const at::Tensor& from);

/// Σ over the last dimension of a · b, in `dtype`.
at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype);

}  // namespace distca
