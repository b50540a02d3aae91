// Rows of a RowPair that lie one after the other in a packed tensor, as index tensors that are made once:
// which of them stand in which of the pair's two tensors, and where in the packed one. Rows that are
// consecutive need no index, a view of them does.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "attend/kernel_tables.h"
#include "attend/rows.h"

namespace distca {

/// Some rows of one tensor, in order.
struct RowList {
  int64_t count = 0;
  int64_t begin = 0;  // of consecutive rows
  at::Tensor index;   // int64; undefined where rows are consecutive

  /// A view where rows are consecutive, else a copy.
  at::Tensor take(const at::Tensor& from) const;
  void put(const at::Tensor& to, const at::Tensor& values) const;
  /// A row that is listed several times gets the sum.
  void add(const at::Tensor& to, const at::Tensor& values) const;
  void fill(const at::Tensor& to, double value) const;
};

RowList make_row_list(std::span<const int64_t> rows);

struct PackedRows {
  RowList all;  // numbered through the pair: row i of the packed tensor is row all[i]
  struct Part {
    RowList own, places;  // rows of one tensor of the pair, and their rows in the packed one
  };
  std::array<Part, 2> parts;

  /// The packed tensor; a view where one part has all rows and they are consecutive.
  at::Tensor take(const RowPair& from) const;
  /// `values` is packed, of any type.
  void put(const RowPair& to, const at::Tensor& values) const;
  /// Adds the packed `values` to rows of a tensor that has the rows of both.
  void add(const at::Tensor& to, const at::Tensor& values) const { all.add(to, values); }
  void fill(const RowPair& to, double value) const;

  PackedRows mapped(const TensorMap& map) const;
};

/// On the CPU. `rows` are numbered through a pair whose first tensor has `first_rows`.
PackedRows make_packed_rows(std::span<const int64_t> rows, int64_t first_rows);

}  // namespace distca
