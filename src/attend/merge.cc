#include "attend/merge.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace distca {

void merge_rows(const MergeTable& table, const Partials& parts, at::Tensor& o, at::Tensor& lse) {
  at::index_select_out(o, parts.o, 0, table.first);
  at::index_select_out(lse, parts.lse, 0, table.first);
  const int64_t split = table.split_rows.size(0);
  if (split == 0) return;
  const int64_t width = table.split_parts.size(1);
  const auto heads = parts.lse.size(1);
  const auto part_lse =
      parts.lse.index_select(0, table.split_parts.reshape({-1})).view({split, width, heads});
  const at::Tensor top = part_lse.amax(1);
  // Where every partial is empty, exp(−inf − −inf) would be NaN: such rows keep weights of 0.
  const at::Tensor finite_top = at::where(top.isinf(), at::zeros_like(top), top);
  at::Tensor total, sum;
  for (int64_t i = 0; i < width; ++i) {
    const at::Tensor weight = (part_lse.select(1, i) - finite_top).exp();
    const at::Tensor part = parts.o.index_select(0, table.split_parts.select(1, i)).to(lse.scalar_type());
    const at::Tensor term = part * weight.unsqueeze(2);
    total = i == 0 ? weight : total + weight;
    sum = i == 0 ? term : sum + term;
  }
  const at::Tensor divisor = at::where(total == 0, at::ones_like(total), total);
  o.index_copy_(0, table.split_rows, (sum / divisor.unsqueeze(2)).to(o.scalar_type()));
  lse.index_copy_(0, table.split_rows, finite_top + total.log());
}

}  // namespace distca
