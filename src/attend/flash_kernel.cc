#include "attend/flash_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "attend/flash_arguments.h"
#include "base/check.h"

namespace distca {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();

at::Tensor index_of(const std::vector<int64_t>& rows, const at::Device& device) {
  return at::tensor(rows, at::kLong).to(device);
}

/// Those rows of a tensor: a view where they are consecutive in one of its parts.
at::Tensor take_rows(const RowPair& from, const std::vector<int64_t>& rows) {
  const int64_t before = from.first.size(0);
  if (consecutive(rows) && (rows.back() < before || rows.front() >= before))
    return from.narrow(rows.front(), static_cast<int64_t>(rows.size()));
  std::vector<int64_t> sizes = from.first.sizes().vec();
  sizes[0] = static_cast<int64_t>(rows.size());
  at::Tensor out = at::empty(sizes, from.first.options());
  gather_rows(out, from, index_of(rows, from.first.device()));
  return out;
}

/// Calls body(tensor, its rows among `rows`, where they stand in `rows`) for the parts that have any.
template <typename Body>
void for_parts(const RowPair& to, const std::vector<int64_t>& rows, const Body& body) {
  const int64_t before = to.first.size(0);
  std::vector<int64_t> own[2], places[2];
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool second = rows[i] >= before;
    own[second].push_back(second ? rows[i] - before : rows[i]);
    places[second].push_back(static_cast<int64_t>(i));
  }
  at::Tensor parts[2] = {to.first, to.second};
  for (int i = 0; i < 2; ++i)
    if (!own[i].empty()) body(parts[i], own[i], places[i]);
}

void put_rows(const RowPair& to, const std::vector<int64_t>& rows, const at::Tensor& values) {
  for_parts(to, rows, [&](at::Tensor& part, const auto& own, const auto& places) {
    const at::Tensor from = places.size() == rows.size() ? values : take_rows(values, places);
    part.index_copy_(0, index_of(own, part.device()), from.to(part.scalar_type()));
  });
}

void add_rows(at::Tensor& to, const std::vector<int64_t>& rows, const at::Tensor& values) {
  to.index_add_(0, index_of(rows, to.device()), values.to(to.scalar_type()));
}

void fill_rows(const RowPair& to, const std::vector<int64_t>& rows, double value) {
  for_parts(to, rows, [&](at::Tensor& part, const auto& own, const auto&) {
    part.index_fill_(0, index_of(own, part.device()), value);
  });
}

/// One call's packed tensors and arguments.
struct PackedCall {
  const FlashCall& call;
  int64_t head_dim, padding;
  at::Tensor cu_seqlens_q, cu_seqlens_k;

  PackedCall(const FlashCall& call, int64_t head_dim, const at::Device& device)
      : call(call),
        head_dim(head_dim),
        padding((head_dim + 7) / 8 * 8 - head_dim),
        cu_seqlens_q(at::tensor(call.cu_seqlens_q, at::kInt).to(device)),
        cu_seqlens_k(at::tensor(call.cu_seqlens_k, at::kInt).to(device)) {}

  at::Tensor pack(const RowPair& from, const std::vector<int64_t>& rows) const {
    const at::Tensor packed = take_rows(from, rows);
    return padding == 0 ? packed : at::constant_pad_nd(packed, {0, padding});
  }
  at::Tensor unpad(const at::Tensor& packed) const { return packed.narrow(-1, 0, head_dim); }
  int64_t window_right() const { return call.causal ? 0 : -1; }
};

class FlashKernel : public AttentionKernel {
 public:
  std::string name() const override { return "flash"; }
  bool needs_output() const override { return true; }

  void forward(const AttentionShape& shape, std::span<const KernelTask> tasks, const RowPair& q,
               const RowPair& k, const RowPair& v, const RowPair& o, const RowPair& lse) override {
    check_type(q.first);
    const FlashArguments arguments = make_flash_arguments(tasks, shape.window_left);
    for (const FlashCall& call : arguments.calls) {
      const PackedCall packed(call, shape.head_dim, q.first.device());
      const auto result = at::_flash_attention_forward(
          packed.pack(q, call.q_rows), packed.pack(k, call.k_rows), packed.pack(v, call.k_rows),
          packed.cu_seqlens_q, packed.cu_seqlens_k, call.max_q, call.max_k, /*dropout_p=*/0.0, call.causal,
          /*return_debug_mask=*/false, shape.scale, call.window_left, packed.window_right());
      put_rows(o, call.o_rows, packed.unpad(std::get<0>(result)));
      put_rows(lse, call.o_rows, std::get<1>(result).t());  // (heads, rows) of a variable-length call
    }
    fill_rows(o, arguments.empty_o_rows, 0);
    fill_rows(lse, arguments.empty_o_rows, kEmpty);
  }

  void backward(const AttentionShape& shape, std::span<const KernelTask> tasks, KernelBackward& t) override {
    check_type(t.q.first);
    for (at::Tensor* gradient : {&t.dq, &t.dk, &t.dv}) gradient->zero_();
    const at::Tensor no_dropout = at::zeros({2}, t.q.first.options().dtype(at::kUInt64));
    for (const FlashCall& call : make_flash_arguments(tasks, shape.window_left).calls) {
      const PackedCall packed(call, shape.head_dim, t.q.first.device());
      const auto [dq, dk, dv] = at::_flash_attention_backward(
          packed.pack(t.dout, call.q_rows), packed.pack(t.q, call.q_rows), packed.pack(t.k, call.k_rows),
          packed.pack(t.v, call.k_rows), packed.pack(t.out, call.q_rows),
          take_rows(t.lse, call.q_rows).t().contiguous(), packed.cu_seqlens_q, packed.cu_seqlens_k,
          call.max_q, call.max_k, /*dropout_p=*/0.0, call.causal, no_dropout, no_dropout, shape.scale,
          call.window_left, packed.window_right());
      add_rows(t.dq, call.q_rows, packed.unpad(dq));
      add_rows(t.dk, call.k_rows, packed.unpad(dk));
      add_rows(t.dv, call.k_rows, packed.unpad(dv));
    }
  }

 private:
  static void check_type(const at::Tensor& q) {
    DISTCA_CHECK_INPUT(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf,
                       "flash attention takes bfloat16 or float16, not {}: set model.dtype = \"bfloat16\"",
                       q.scalar_type());
  }
};

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

  void forward(const AttentionShape& shape, std::span<const KernelTask> tasks, const RowPair& q,
               const RowPair& k, const RowPair& v, const RowPair& o, const RowPair& lse) override {
    check_window(shape);
    for (const KernelTask& task : tasks) {
      if (task.q_len == 0) continue;
      at::Tensor o_rows = o.narrow(task.o_row, task.q_len).zero_();
      at::Tensor lse_rows = lse.narrow(task.o_row, task.q_len).fill_(kEmpty);
      for (const CpuPart& part : cpu_parts(make_flash_arguments(std::span(&task, 1), kNoWindow))) {
        const auto [part_o, part_lse] = at::_scaled_dot_product_flash_attention_for_cpu(
            heads_first(take_rows(q, part.q_rows)), grouped(shape, take_rows(k, part.k_rows)),
            grouped(shape, take_rows(v, part.k_rows)), 0.0, part.causal, {}, shape.scale);
        merge(part.o_rows.front() - task.o_row, rows_first(part_o), part_lse.squeeze(0).t(), o_rows,
              lse_rows);
      }
    }
  }

  void backward(const AttentionShape& shape, std::span<const KernelTask> tasks, KernelBackward& t) override {
    check_window(shape);
    for (at::Tensor* gradient : {&t.dq, &t.dk, &t.dv}) gradient->zero_();
    for (const KernelTask& task : tasks) {
      for (const CpuPart& part : cpu_parts(make_flash_arguments(std::span(&task, 1), kNoWindow))) {
        const at::Tensor lse = take_rows(t.lse, part.q_rows).t().unsqueeze(0).contiguous();
        const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            heads_first(take_rows(t.dout, part.q_rows)), heads_first(take_rows(t.q, part.q_rows)),
            grouped(shape, take_rows(t.k, part.k_rows)), grouped(shape, take_rows(t.v, part.k_rows)),
            heads_first(take_rows(t.out, part.q_rows)), lse, 0.0, part.causal, {}, shape.scale);
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

  /// Rows of one part are consecutive.
  static void add(at::Tensor& to, const std::vector<int64_t>& rows, const at::Tensor& values) {
    to.narrow(0, rows.front(), static_cast<int64_t>(rows.size())).add_(values);
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_flash_kernel(int) {
  return std::make_unique<FlashKernel>();
}
std::unique_ptr<AttentionKernel> make_pytorch_kernel(int) {
  return std::make_unique<PytorchKernel>();
}

}  // namespace distca
