// Core attention of many equal tasks as one kernel call on tensors that are packed already: what the kernel
// itself takes on a device, without what a host does beside it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "attend/attention_kernel.h"

namespace distca {

/// What measurements on that device are made in: bfloat16 on CUDA devices, whose flash attention takes 16
/// bits alone; else float32.
at::ScalarType measured_type(at::Device device);

/// `count` tasks of q query rows and kv keys each, bottom-right causal; where kv < q, unmasked with as many
/// pairs, as AttentionGrid has them. Every task has rows of its own, standard normal. On a CUDA device by
/// flash attention, elsewhere by the device's first kernel.
class PackedTasks {
 public:
  PackedTasks(at::Device device, const AttentionShape& shape, int64_t count, int64_t q, int64_t kv);

  void forward();
  /// Needs a forward() before it.
  void backward();

  /// Of the pairs that the mask leaves: 4 · head_dim each forward, 10 backward.
  double flops(bool backward) const;

 private:
  at::Device device_;
  AttentionShape shape_;
  int64_t count_, q_len_, kv_len_;
  bool causal_;
  at::Tensor q_, k_, v_, dout_, o_, lse_, cu_seqlens_q_, cu_seqlens_k_;
  // Elsewhere than on CUDA devices.
  std::unique_ptr<AttentionKernel> kernel_;
  std::vector<KernelTask> tasks_;
  KernelBackward grads_;
};

}  // namespace distca
