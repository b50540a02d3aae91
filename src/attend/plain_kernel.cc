#include "attend/plain_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

namespace distca {
namespace {

constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

/// Rows (n, heads, width) as (kv_heads, heads / kv_heads · n, width) in the accumulator type: the query heads
/// of a key/value head one after the other.
at::Tensor grouped(const at::Tensor& rows, int64_t kv_heads) {
  const int64_t n = rows.size(0), group = rows.size(1) / kv_heads;
  return rows.to(accumulator_type(rows.scalar_type()))
      .view({n, kv_heads, group, rows.size(2)})
      .permute({1, 2, 0, 3})
      .reshape({kv_heads, group * n, rows.size(2)});
}

/// The reverse: (n, heads, width).
at::Tensor ungrouped(const at::Tensor& rows, int64_t n) {
  const int64_t kv_heads = rows.size(0), group = rows.size(1) / n;
  return rows.view({kv_heads, group, n, rows.size(2)}).permute({2, 0, 1, 3}).reshape({n, -1, rows.size(2)});
}

/// Which keys a query doesn't see, (q_len, kv_len).
at::Tensor hidden_keys(const KernelTask& task, int64_t window_left, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor position =
      at::arange(task.q_pos, task.q_pos + task.q_len, options).unsqueeze(1);  // (q_len, 1)
  const at::Tensor key = at::arange(task.kv_pos, task.kv_pos + task.kv_len, options).unsqueeze(0);
  const at::Tensor later = key > position;
  return window_left == kNoWindow ? later : later.logical_or(key < position - window_left);
}

/// Scaled scores of a task under the mask, (kv_heads, group · q_len, kv_len).
at::Tensor scores(const AttentionShape& shape, const KernelTask& task, const at::Tensor& q,
                  const at::Tensor& k) {
  const at::Tensor s = at::matmul(q, k.transpose(1, 2)).mul_(shape.scale);
  const at::Tensor hidden = hidden_keys(task, shape.window_left, s.device());
  s.view({shape.kv_heads, -1, task.q_len, task.kv_len}).masked_fill_(hidden, kEmptyLse);
  return s;
}

/// exp(s − lse), 0 in rows whose lse is −inf.
at::Tensor probabilities(const at::Tensor& s, const at::Tensor& lse) {
  return (s - at::where(lse.isinf(), at::zeros_like(lse), lse)).exp_();
}

class PlainKernel : public AttentionKernel {
 public:
  std::string name() const override { return "plain"; }

  void forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q, const RowPair& k,
               const RowPair& v, const RowPair& o, const RowPair& lse) override {
    shape.check();
    for (const KernelTask& task : tasks.list) {
      if (task.q_len == 0) continue;
      at::Tensor out = o.narrow(task.o_row, task.q_len), out_lse = lse.narrow(task.o_row, task.q_len);
      if (task.kv_len == 0) {
        out.zero_();
        out_lse.fill_(kEmptyLse);
        continue;
      }
      const at::Tensor s = scores(shape, task, grouped(q.narrow(task.q_row, task.q_len), shape.kv_heads),
                                  grouped(k.narrow(task.kv_row, task.kv_len), shape.kv_heads));
      const at::Tensor row_lse = at::logsumexp(s, 2, /*keepdim=*/true);
      const at::Tensor values = grouped(v.narrow(task.kv_row, task.kv_len), shape.kv_heads);
      out.copy_(ungrouped(at::matmul(probabilities(s, row_lse), values), task.q_len));
      out_lse.copy_(ungrouped(row_lse, task.q_len).squeeze(2));
    }
  }

  void backward(const AttentionShape& shape, const KernelTasks& tasks, KernelBackward& t) override {
    shape.check();
    for (at::Tensor* gradient : {&t.dq, &t.dk, &t.dv}) gradient->zero_();
    for (const KernelTask& task : tasks.list) {
      if (task.q_len > 0 && task.kv_len > 0) add_gradients(shape, task, t);
    }
  }

 private:
  static void add_gradients(const AttentionShape& shape, const KernelTask& task, KernelBackward& t) {
    const auto of_queries = [&](const at::Tensor& rows) { return grouped(rows, shape.kv_heads); };
    const auto per_row = [&](const RowPair& pair) {
      return of_queries(pair.narrow(task.q_row, task.q_len).unsqueeze(2));
    };
    const at::Tensor q = of_queries(t.q.narrow(task.q_row, task.q_len));
    const at::Tensor dout = of_queries(t.dout.narrow(task.q_row, task.q_len));
    const at::Tensor k = of_queries(t.k.narrow(task.kv_row, task.kv_len));
    const at::Tensor v = of_queries(t.v.narrow(task.kv_row, task.kv_len));
    const at::Tensor p = probabilities(scores(shape, task, q, k), per_row(t.lse));
    const at::Tensor ds = (at::matmul(dout, v.transpose(1, 2)) - per_row(t.delta)).mul_(p).mul_(shape.scale);
    const auto add = [](const at::Tensor& to, int64_t row, int64_t rows, const at::Tensor& x) {
      to.narrow(0, row, rows).add_(ungrouped(x, rows));
    };
    add(t.dq, task.q_row, task.q_len, at::matmul(ds, k));
    add(t.dk, task.kv_row, task.kv_len, at::matmul(ds.transpose(1, 2), q));
    add(t.dv, task.kv_row, task.kv_len, at::matmul(p.transpose(1, 2), dout));
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_plain_kernel(int) {
  return std::make_unique<PlainKernel>();
}

}  // namespace distca
