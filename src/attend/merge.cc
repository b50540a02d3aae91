#include "attend/merge.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "attend/plain_memory.h"
#include "kernel/merge.h"

namespace distca {
namespace {

void fill_rows(at::Tensor& out, const at::Tensor& rows, double value) {
  if (rows.size(0) > 0 && !out.is_meta()) out.index_fill_(0, rows, value);
}

SplitRows split_rows(const MergeTable& table) {
  return {table.split_rows.data_ptr<int64_t>(), table.split_parts.data_ptr<int64_t>(),
          table.split_rows.size(0), table.split_parts.size(1), table.empty};
}

}  // namespace

void merge_rows(const MergeTable& table, const Partials& parts, at::Tensor& o, at::Tensor& lse) {
  fill_rows(o, table.empty_rows, 0);
  fill_rows(lse, table.empty_rows, -std::numeric_limits<double>::infinity());
  move_rows(o, table.moved_rows, parts.o, table.moved_parts);
  move_rows(lse, table.moved_rows, parts.lse, table.moved_parts);
  if (table.split_rows.size(0) == 0) return;
  if (!o.is_cpu()) return merge_split_rows(table, parts, o, lse);
  const int64_t heads = o.size(1), head_dim = o.size(2);
  for_element_type(o.scalar_type(), [&]<typename T>(T) {
    merge_split_rows(split_rows(table), heads, head_dim, tensor_rows<const T>(parts.o),
                     tensor_rows<const Accumulator<T>>(parts.lse), static_cast<T*>(o.data_ptr()),
                     static_cast<Accumulator<T>*>(lse.data_ptr()));
  });
}

void merge_split_rows(const MergeTable& table, const Partials& parts, at::Tensor& o, at::Tensor& lse) {
  const int64_t split = table.split_rows.size(0);
  const int64_t width = table.split_parts.size(1);
  const at::Tensor part_lse = at::empty({split * width, lse.size(1)}, lse.options());
  gather_rows(part_lse, parts.lse, table.split_parts.reshape({-1}));
  const at::Tensor by_row = part_lse.view({split, width, lse.size(1)});
  const at::Tensor top = by_row.amax(1);
  // Where every partial is empty, exp(−inf − −inf) would be NaN: such rows keep weights of 0.
  const at::Tensor finite_top = at::where(top.isinf(), at::zeros_like(top), top);
  const at::Tensor part = at::empty({split, o.size(1), o.size(2)}, o.options());
  at::Tensor total, sum;
  for (int64_t i = 0; i < width; ++i) {
    const at::Tensor weight = (by_row.select(1, i) - finite_top).exp();
    gather_rows(part, parts.o, table.split_parts.select(1, i).contiguous());
    const at::Tensor term = part.to(lse.scalar_type()) * weight.unsqueeze(2);
    total = i == 0 ? weight : total + weight;
    sum = i == 0 ? term : sum + term;
  }
  const at::Tensor divisor = at::where(total == 0, at::ones_like(total), total);
  o.index_copy_(0, table.split_rows, (sum / divisor.unsqueeze(2)).to(o.scalar_type()));
  lse.index_copy_(0, table.split_rows, finite_top + total.log());
}

void sum_rows(const MergeTable& table, const RowPair& parts, at::ScalarType sum_dtype, at::Tensor& out) {
  fill_rows(out, table.empty_rows, 0);
  move_rows(out, table.moved_rows, parts, table.moved_parts);
  if (table.split_rows.size(0) == 0) return;
  if (!out.is_cpu()) return sum_split_rows(table, parts, sum_dtype, out);
  for_element_type(out.scalar_type(), [&]<typename T>(T) {
    sum_split_rows(split_rows(table), out.stride(0), tensor_rows<const T>(parts),
                   static_cast<T*>(out.data_ptr()));
  });
}

void sum_split_rows(const MergeTable& table, const RowPair& parts, at::ScalarType sum_dtype,
                    at::Tensor& out) {
  const int64_t split = table.split_rows.size(0);
  std::vector<int64_t> shape = out.sizes().vec();
  shape[0] = split;
  const at::Tensor part = at::empty(shape, out.options());
  at::Tensor sum;
  for (int64_t i = 0; i < table.split_parts.size(1); ++i) {
    gather_rows(part, parts, table.split_parts.select(1, i).contiguous());
    sum = i == 0 ? part.to(sum_dtype, /*non_blocking=*/false, /*copy=*/true) : sum.add_(part.to(sum_dtype));
  }
  out.index_copy_(0, table.split_rows, sum.to(out.scalar_type()));
}

}  // namespace distca
