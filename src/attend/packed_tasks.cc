#include "attend/packed_tasks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace distca {

at::ScalarType measured_type(at::Device device) {
  return device.is_cuda() ? at::kBFloat16 : at::kFloat;
}

PackedTasks::PackedTasks(at::Device device, const AttentionShape& shape, int64_t count, int64_t q, int64_t kv)
    : device_(device),
      shape_(shape),
      count_(count),
      q_len_(q),
      kv_len_(kv >= q ? kv : std::max<int64_t>(1, kv - (q - 1) / 2)),
      causal_(kv >= q) {
  const auto options = at::TensorOptions().dtype(measured_type(device)).device(device);
  const auto rows = [&](int64_t rows, int64_t heads) {
    return at::randn({rows, heads, shape.head_dim}, options);
  };
  q_ = rows(count * q, shape.heads), dout_ = rows(count * q, shape.heads);
  k_ = rows(count * kv_len_, shape.kv_heads), v_ = rows(count * kv_len_, shape.kv_heads);
  if (device.is_cuda()) {
    const at::Tensor places = at::arange(count + 1, options.dtype(at::kInt));
    cu_seqlens_q_ = (places * q_len_).to(at::kInt), cu_seqlens_k_ = (places * kv_len_).to(at::kInt);
    return;
  }
  kernel_ = make_attention_kernel("auto", device.type(), 1);
  for (int64_t i = 0; i < count; ++i) {
    tasks_.push_back({.q_row = i * q,
                      .q_len = q,
                      .q_pos = causal_ ? kv_len_ - q : kv_len_,
                      .kv_row = i * kv_len_,
                      .kv_len = kv_len_,
                      .o_row = i * q});
  }
  const auto sums = options.dtype(accumulator_type(measured_type(device)));
  o_ = at::empty(q_.sizes(), options);
  lse_ = at::empty({count * q, shape.heads}, sums);
  grads_ = {q_, k_, v_, dout_, o_, lse_, at::full(lse_.sizes(), 0.1, sums), {}, {}, {}};
  grads_.dq = at::empty(q_.sizes(), sums);
  grads_.dk = at::empty(k_.sizes(), sums), grads_.dv = at::empty(k_.sizes(), sums);
}

void PackedTasks::forward() {
  if (kernel_) return kernel_->forward(shape_, tasks_, q_, k_, v_, o_, lse_);
  const auto result =
      at::_flash_attention_forward(q_, k_, v_, cu_seqlens_q_, cu_seqlens_k_, q_len_, kv_len_, 0.0, causal_,
                                   /*return_debug_mask=*/false, shape_.scale);
  o_ = std::get<0>(result), lse_ = std::get<1>(result);
}

void PackedTasks::backward() {
  if (kernel_) return kernel_->backward(shape_, tasks_, grads_);
  const at::Tensor no_dropout = at::zeros({2}, q_.options().dtype(at::kUInt64));
  at::_flash_attention_backward(dout_, q_, k_, v_, o_, lse_, cu_seqlens_q_, cu_seqlens_k_, q_len_, kv_len_,
                                0.0, causal_, no_dropout, no_dropout, shape_.scale);
}

double PackedTasks::flops(bool backward) const {
  const auto rows = static_cast<double>(q_len_), keys = static_cast<double>(kv_len_);
  const double pairs = causal_ ? rows * (keys - (rows - 1) / 2) : rows * keys;
  return pairs * static_cast<double>(count_ * shape_.heads * shape_.head_dim) * (backward ? 10 : 4);
}

}  // namespace distca
