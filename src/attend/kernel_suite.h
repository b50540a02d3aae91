// What every attention kernel must do, as functions over a kernel and a device: the tests of each kernel run
// them. Expected values are those of the reference on the CPU.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/cpu_kernels.h"

namespace distca::suite {

/// Whole documents, tasks on the diagonal with a prefix, full tasks, rows without keys, empty tasks.
inline const std::vector<KernelTask> kTasks = {
    {.q_row = 0, .q_len = 37, .kv_row = 0, .kv_len = 37, .o_row = 0},
    {.q_row = 37, .q_len = 20, .q_pos = 50, .kv_row = 37, .kv_len = 70, .o_row = 37},
    {.q_row = 57, .q_len = 11, .q_pos = 90, .kv_row = 37, .kv_len = 60, .o_row = 57},
    {.q_row = 68, .q_len = 9, .q_pos = 5, .kv_row = 107, .kv_len = 6, .kv_pos = 8, .o_row = 68},
    {.q_row = 77, .q_len = 3, .q_pos = 5, .kv_row = 0, .kv_len = 0, .o_row = 77},
    {.q_row = 80, .q_len = 0, .kv_row = 0, .kv_len = 3, .o_row = 80}};
inline constexpr int64_t kRows = 80, kKeys = 113;

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor same = a.eq(b);
  return (a - b).abs().masked_fill(same, 0).max().item<double>();
}

/// What a kernel makes of inputs that are random and the same for all, on the CPU. `forward` gives what
/// backward reads; null: the kernel's own.
inline KernelBackward results_of(AttentionKernel& kernel, at::Device device, at::ScalarType type,
                                 const AttentionShape& shape, const KernelBackward* forward = nullptr) {
  at::manual_seed(1);
  const auto random = [&](int64_t rows, int64_t heads) {
    return at::randn({rows, heads, shape.head_dim}, type).to(device);
  };
  const auto unset = [&](std::vector<int64_t> sizes, at::ScalarType dtype) {
    return at::full(sizes, NAN, at::TensorOptions().dtype(dtype).device(device));
  };
  const int64_t heads = shape.heads, kv_heads = shape.kv_heads, head_dim = shape.head_dim;
  const at::ScalarType sums = accumulator_type(type);
  KernelBackward t;
  t.q = random(kRows, heads), t.dout = random(kRows, heads);
  t.k = random(kKeys, kv_heads), t.v = random(kKeys, kv_heads);
  t.out = unset({kRows, heads, head_dim}, type), t.lse = unset({kRows, heads}, sums);
  kernel.forward(shape, kTasks, t.q, t.k, t.v, t.out, t.lse);
  KernelBackward out = t;
  if (forward != nullptr) t.out = forward->out.first.to(device), t.lse = forward->lse.first.to(device);
  t.delta = (t.dout.first.to(sums) * t.out.first.to(sums)).sum(-1);
  t.dq = unset({kRows, heads, head_dim}, sums);
  t.dk = unset({kKeys, kv_heads, head_dim}, sums), t.dv = unset({kKeys, kv_heads, head_dim}, sums);
  kernel.backward(shape, kTasks, t);
  out.out = out.out.first.cpu(), out.lse = out.lse.first.cpu();
  out.dq = t.dq.cpu(), out.dk = t.dk.cpu(), out.dv = t.dv.cpu();
  return out;
}

/// `kernel` on `device`, forward and backward, against the reference.
inline void expect_equals_reference(AttentionKernel& kernel, at::Device device, at::ScalarType type,
                                    double tolerance, int64_t window_left = kNoWindow) {
  const AttentionShape shape{4, 2, 16, 0.25, window_left};
  const auto reference = make_reference_kernel(1);
  const KernelBackward expected = results_of(*reference, at::kCPU, type, shape);
  const KernelBackward actual = results_of(kernel, device, type, shape, &expected);
  EXPECT_LE(largest_difference(actual.out.first, expected.out.first), tolerance);
  EXPECT_LE(largest_difference(actual.lse.first, expected.lse.first), tolerance);
  EXPECT_LE(largest_difference(actual.dq, expected.dq), tolerance);
  EXPECT_LE(largest_difference(actual.dk, expected.dk), tolerance);
  EXPECT_LE(largest_difference(actual.dv, expected.dv), tolerance);
}

}  // namespace distca::suite
