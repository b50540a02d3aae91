#include "attend/flash_kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "base/check.h"

namespace distca {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();

class PytorchFlash : public PackedAttention {
 public:
  void check_type(at::ScalarType type) const override {
    DISTCA_CHECK_INPUT(type == at::kBFloat16 || type == at::kHalf,
                       "flash attention takes bfloat16 or float16, not {}: set model.dtype = \"bfloat16\"",
                       type);
  }

  std::pair<at::Tensor, at::Tensor> forward(const FlashCallTables& call, double scale, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& v) const override {
    const auto result = at::_flash_attention_forward(
        q, k, v, call.cu_seqlens_q, call.cu_seqlens_k, call.max_q, call.max_k, /*dropout_p=*/0.0, call.causal,
        /*return_debug_mask=*/false, scale, call.window_left, window_right(call));
    return {std::get<0>(result), std::get<1>(result)};
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const FlashCallTables& call, double scale,
                                                          const at::Tensor& dout, const at::Tensor& q,
                                                          const at::Tensor& k, const at::Tensor& v,
                                                          const at::Tensor& o,
                                                          const at::Tensor& lse) const override {
    const at::Tensor no_dropout = at::zeros({2}, q.options().dtype(at::kUInt64));
    return at::_flash_attention_backward(dout, q, k, v, o, lse, call.cu_seqlens_q, call.cu_seqlens_k,
                                         call.max_q, call.max_k, /*dropout_p=*/0.0, call.causal, no_dropout,
                                         no_dropout, scale, call.window_left, window_right(call));
  }

 private:
  static int64_t window_right(const FlashCallTables& call) { return call.causal ? 0 : -1; }
};

/// Packed rows, whose head_dim is made a multiple of 8.
at::Tensor pack(const PackedRows& rows, const RowPair& from) {
  const at::Tensor packed = rows.take(from);
  const int64_t head_dim = packed.size(-1), padding = (head_dim + 7) / 8 * 8 - head_dim;
  return padding == 0 ? packed : at::constant_pad_nd(packed, {0, padding});
}

class FlashKernel : public AttentionKernel {
 public:
  FlashKernel(std::string name, std::unique_ptr<PackedAttention> attention)
      : name_(std::move(name)), attention_(std::move(attention)) {}

  std::string name() const override { return name_; }
  bool needs_output() const override { return true; }

  std::shared_ptr<const KernelTables> prepare(const AttentionShape& shape, std::span<const KernelTask> tasks,
                                              const FirstRows& first) const override {
    return make_flash_tables(tasks, shape.window_left, first);
  }

  void forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q, const RowPair& k,
               const RowPair& v, const RowPair& o, const RowPair& lse) override {
    attention_->check_type(q.first.scalar_type());
    const FirstRows first = {q.first.size(0), k.first.size(0), o.first.size(0)};
    std::shared_ptr<const KernelTables> own;
    const FlashTables& tables = tables_of(shape, tasks, first, q.first.device(), own);
    for (const FlashCallTables& call : tables.calls) {
      const auto [packed_o, packed_lse] =
          attention_->forward(call, shape.scale, pack(call.q, q), pack(call.k, k), pack(call.k, v));
      call.o.put(o, packed_o.narrow(-1, 0, shape.head_dim));
      call.o.put(lse, packed_lse.t());
    }
    tables.empty_o.fill(o, 0);
    tables.empty_o.fill(lse, kEmpty);
  }

  void backward(const AttentionShape& shape, const KernelTasks& tasks, KernelBackward& t) override {
    attention_->check_type(t.q.first.scalar_type());
    for (at::Tensor* gradient : {&t.dq, &t.dk, &t.dv}) gradient->zero_();
    // dO, O and LSE are by query row here.
    const FirstRows first = {t.q.first.size(0), t.k.first.size(0), t.q.first.size(0)};
    std::shared_ptr<const KernelTables> own;
    const FlashTables& tables = tables_of(shape, tasks, first, t.q.first.device(), own);
    for (const FlashCallTables& call : tables.calls) {
      const auto [dq, dk, dv] =
          attention_->backward(call, shape.scale, pack(call.q, t.dout), pack(call.q, t.q), pack(call.k, t.k),
                               pack(call.k, t.v), pack(call.q, t.out), call.q.take(t.lse).t().contiguous());
      call.q.add(t.dq, dq.narrow(-1, 0, shape.head_dim));
      call.k.add(t.dk, dk.narrow(-1, 0, shape.head_dim));
      call.k.add(t.dv, dv.narrow(-1, 0, shape.head_dim));
    }
  }

 private:
  /// Those that were given, or `own`, which are then made here.
  static const FlashTables& tables_of(const AttentionShape& shape, const KernelTasks& tasks,
                                      const FirstRows& first, at::Device device,
                                      std::shared_ptr<const KernelTables>& own) {
    if (tasks.tables == nullptr) {
      own = make_flash_tables(tasks.list, shape.window_left, first)->mapped([&](const at::Tensor& x) {
        return x.to(device);
      });
    }
    const auto* tables = dynamic_cast<const FlashTables*>(own ? own.get() : tasks.tables);
    DISTCA_CHECK(tables != nullptr, "flash attention is given the tables of another kernel");
    tables->check(first, shape.window_left);
    return *tables;
  }

  std::string name_;
  std::unique_ptr<PackedAttention> attention_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_flash_kernel(int) {
  return make_packing_kernel("flash", std::make_unique<PytorchFlash>());
}

std::unique_ptr<AttentionKernel> make_packing_kernel(std::string name,
                                                     std::unique_ptr<PackedAttention> attention) {
  return std::make_unique<FlashKernel>(std::move(name), std::move(attention));
}

}  // namespace distca
