#include "attend/pytorch_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>

#include <limits>

#include "attend/flash_arguments.h"
#include "base/check.h"

namespace distca {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();

/// Rows of one part are consecutive.
at::Tensor rows_of(const RowPair& from, const std::vector<int64_t>& rows) {
  return from.narrow(rows.front(), static_cast<int64_t>(rows.size()));
}

/// A part of a task that PyTorch's CPU kernel takes: no mask, or a causal square.
struct CpuPart {
  std::vector<int64_t> q_rows, k_rows, o_rows;
  bool causal = false;
};

/// The CPU kernel aligns its causal mask with the first query and key, so a bottom-right triangle is a
/// rectangle and a square.
std::vector<CpuPart> cpu_parts(const FlashArguments& arguments) {
  std::vector<CpuPart> parts;
  for (const FlashCall& call : arguments.calls) {
    const size_t before = call.causal ? call.k_rows.size() - call.q_rows.size() : call.k_rows.size();
    const auto cut = call.k_rows.begin() + static_cast<std::ptrdiff_t>(before);
    if (before > 0) parts.push_back({call.q_rows, {call.k_rows.begin(), cut}, call.o_rows, false});
    if (call.causal) parts.push_back({call.q_rows, {cut, call.k_rows.end()}, call.o_rows, true});
  }
  return parts;
}

class PytorchKernel : public AttentionKernel {
 public:
  std::string name() const override { return "pytorch"; }
  bool needs_output() const override { return true; }

  void forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q, const RowPair& k,
               const RowPair& v, const RowPair& o, const RowPair& lse) override {
    check_window(shape);
    for (const KernelTask& task : tasks.list) {
      if (task.q_len == 0) continue;
      at::Tensor o_rows = o.narrow(task.o_row, task.q_len).zero_();
      at::Tensor lse_rows = lse.narrow(task.o_row, task.q_len).fill_(kEmpty);
      for (const CpuPart& part : cpu_parts(make_flash_arguments(std::span(&task, 1), kNoWindow))) {
        const auto [part_o, part_lse] = at::_scaled_dot_product_flash_attention_for_cpu(
            heads_first(rows_of(q, part.q_rows)), grouped(shape, rows_of(k, part.k_rows)),
            grouped(shape, rows_of(v, part.k_rows)), 0.0, part.causal, {}, shape.scale);
        merge(part.o_rows.front() - task.o_row, rows_first(part_o), part_lse.squeeze(0).t(), o_rows,
              lse_rows);
      }
    }
  }

  void backward(const AttentionShape& shape, const KernelTasks& tasks, KernelBackward& t) override {
    check_window(shape);
    for (at::Tensor* gradient : {&t.dq, &t.dk, &t.dv}) gradient->zero_();
    for (const KernelTask& task : tasks.list) {
      for (const CpuPart& part : cpu_parts(make_flash_arguments(std::span(&task, 1), kNoWindow))) {
        const at::Tensor lse = rows_of(t.lse, part.q_rows).t().unsqueeze(0).contiguous();
        const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            heads_first(rows_of(t.dout, part.q_rows)), heads_first(rows_of(t.q, part.q_rows)),
            grouped(shape, rows_of(t.k, part.k_rows)), grouped(shape, rows_of(t.v, part.k_rows)),
            heads_first(rows_of(t.out, part.q_rows)), lse, 0.0, part.causal, {}, shape.scale);
        add(t.dq, part.q_rows, rows_first(dq));
        add(t.dk, part.k_rows, group_sums(shape, dk));
        add(t.dv, part.k_rows, group_sums(shape, dv));
      }
    }
  }

 private:
  static void check_window(const AttentionShape& shape) {
    DISTCA_CHECK_INPUT(shape.window_left == kNoWindow,
                       "PyTorch's CPU kernel has no sliding window: use attention.kernel = \"cpu\"");
  }

  /// (rows, heads, head_dim) to (1, heads, rows, head_dim) and back.
  static at::Tensor heads_first(const at::Tensor& rows) { return rows.transpose(0, 1).unsqueeze(0); }
  static at::Tensor rows_first(const at::Tensor& heads) { return heads.squeeze(0).transpose(0, 1); }

  /// Key/value heads repeated for the query heads of their groups.
  static at::Tensor grouped(const AttentionShape& shape, const at::Tensor& rows) {
    return heads_first(rows).repeat_interleave(shape.heads / shape.kv_heads, 1);
  }

  static at::Tensor group_sums(const AttentionShape& shape, const at::Tensor& heads) {
    const at::Tensor rows = rows_first(heads);
    const at::ScalarType type = accumulator_type(rows.scalar_type());
    return rows.reshape({rows.size(0), shape.kv_heads, shape.heads / shape.kv_heads, rows.size(2)})
        .sum(2, false, type);
  }

  /// Merges a partial result into rows [first, first + its rows) of a task's.
  static void merge(int64_t first, const at::Tensor& part_o, const at::Tensor& part_lse, at::Tensor& o,
                    at::Tensor& lse) {
    at::Tensor to_o = o.narrow(0, first, part_o.size(0)), to_lse = lse.narrow(0, first, part_o.size(0));
    const at::Tensor merged = at::logaddexp(to_lse, part_lse);
    const at::Tensor kept = at::exp(to_lse - merged).unsqueeze(-1) * to_o;
    to_o.copy_(kept + at::exp(part_lse - merged).unsqueeze(-1) * part_o);
    to_lse.copy_(merged);
  }

  static void add(at::Tensor& to, const std::vector<int64_t>& rows, const at::Tensor& values) {
    rows_of(to, rows).add_(values);
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_pytorch_kernel(int) {
  return std::make_unique<PytorchKernel>();
}

}  // namespace distca
