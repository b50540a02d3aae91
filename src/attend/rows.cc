#include "attend/rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>

#include "base/check.h"
#include "kernel/rows.h"

namespace distca {

void gather_rows(const at::Tensor& out, const RowPair& rows, const at::Tensor& index) {
  // On the meta device tensors have no memory: only what is allocated counts there.
  if (out.size(0) == 0 || out.is_meta()) return;
  at::Tensor to = out;
  if (!out.is_cpu()) {
    const at::Tensor all = rows.second.defined() ? at::cat({rows.first, rows.second}, 0) : rows.first;
    at::index_select_out(to, all, 0, index);
    return;
  }
  DISTCA_CHECK(out.is_contiguous() && rows.first.is_contiguous() && index.is_contiguous() &&
                   (!rows.second.defined() || rows.second.is_contiguous()),
               "rows of tensors that aren't contiguous can't be gathered");
  const RowSources sources = {rows.first.data_ptr(), rows.first.size(0),
                              rows.second.defined() ? rows.second.data_ptr() : nullptr};
  copy_rows(to.data_ptr(), sources, index.data_ptr<int64_t>(), out.size(0),
            static_cast<int64_t>(out.nbytes()) / out.size(0));
}

at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  if (!(a.is_cpu() || a.is_meta()) || a.scalar_type() != dtype ||
      (dtype != at::kFloat && dtype != at::kDouble))
    return at::mul(a.to(dtype), b.to(dtype)).sum(-1);
  DISTCA_CHECK(a.is_contiguous() && b.is_contiguous() && a.sizes() == b.sizes(),
               "products of rows of shapes {} and {}", a.sizes(), b.sizes());
  const at::IntArrayRef shape(a.sizes().data(), static_cast<size_t>(a.dim() - 1));
  at::Tensor out = at::empty(shape, a.options());
  const int64_t width = a.size(-1);
  if (a.is_meta()) return out;
  if (dtype == at::kFloat) {
    row_dots(out.data_ptr<float>(), a.data_ptr<float>(), b.data_ptr<float>(), out.numel(), width);
  } else {
    row_dots(out.data_ptr<double>(), a.data_ptr<double>(), b.data_ptr<double>(), out.numel(), width);
  }
  return out;
}

}  // namespace distca
