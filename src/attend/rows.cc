#include "attend/rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>

#include "base/check.h"
#include "kernel/rows.h"

namespace distca {

namespace {

at::Tensor joined(const RowPair& rows) {
  return rows.second.defined() ? at::cat({rows.first, rows.second}, 0) : rows.first;
}

/// The memory of contiguous rows on the CPU.
RowSources row_sources(const RowPair& rows) {
  DISTCA_CHECK(rows.first.is_contiguous() && (!rows.second.defined() || rows.second.is_contiguous()),
               "rows of tensors that aren't contiguous can't be read one by one");
  return {rows.first.data_ptr(), rows.first.size(0),
          rows.second.defined() ? rows.second.data_ptr() : nullptr};
}

int64_t row_bytes(const at::Tensor& rows) {
  return static_cast<int64_t>(rows.nbytes()) / rows.size(0);
}

}  // namespace

at::Tensor RowPair::narrow(int64_t begin, int64_t count) const {
  const int64_t before = first.size(0);
  if (begin + count <= before) return first.narrow(0, begin, count);
  DISTCA_CHECK(begin >= before && second.defined(), "rows {} to {} stand in two tensors, the first of {}",
               begin, begin + count, before);
  return second.narrow(0, begin - before, count);
}

// On the meta device tensors have no memory: only what is allocated counts there.
void gather_rows(const at::Tensor& out, const RowPair& rows, const at::Tensor& index) {
  if (out.size(0) == 0 || out.is_meta()) return;
  at::Tensor to = out;
  if (!out.is_cpu()) {
    at::index_select_out(to, joined(rows), 0, index);
    return;
  }
  DISTCA_CHECK(out.is_contiguous() && index.is_contiguous(), "rows are gathered into a contiguous tensor");
  copy_rows(to.data_ptr(), row_sources(rows), index.data_ptr<int64_t>(), out.size(0), row_bytes(out));
}

void move_rows(const at::Tensor& out, const at::Tensor& to, const RowPair& rows, const at::Tensor& from) {
  if (to.size(0) == 0 || out.is_meta()) return;
  if (!out.is_cpu()) {
    at::Tensor target = out;
    target.index_copy_(0, to, joined(rows).index_select(0, from));
    return;
  }
  DISTCA_CHECK(out.is_contiguous(), "rows are moved into a contiguous tensor");
  move_rows(out.data_ptr(), to.data_ptr<int64_t>(), row_sources(rows), from.data_ptr<int64_t>(), to.size(0),
            row_bytes(out));
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
