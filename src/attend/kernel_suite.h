// What every attention kernel must do, as functions over a kernel and a device: the tests of each kernel run
// them. Expected values are those of the reference on the CPU.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
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

/// Tasks with rows of their own: squares, tasks with a prefix, full ones, a few rows against many keys.
inline std::vector<KernelTask> random_tasks(uint64_t seed, int count, int64_t most_rows) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<KernelTask> tasks;
  int64_t q_row = 0, kv_row = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t q_len = pick(1, most_rows), before = pick(0, 2) == 0 ? 0 : pick(0, 4 * most_rows);
    const bool full = pick(0, 3) == 0;
    KernelTask task{.q_row = q_row, .q_len = q_len, .q_pos = before, .kv_row = kv_row};
    task.kv_len = full ? std::max<int64_t>(1, before) : before + q_len;
    task.o_row = q_row;
    q_row += task.q_len, kv_row += task.kv_len;
    tasks.push_back(task);
  }
  return tasks;
}

/// Attention task by task as PyTorch has it, differentiated by autograd, in the type of q.
inline KernelBackward by_pytorch(const AttentionShape& shape, std::span<const KernelTask> tasks,
                                 const KernelBackward& in, at::ScalarType type) {
  KernelBackward out;
  const auto leaf = [&](const RowPair& x) { return x.first.to(type).detach().clone().requires_grad_(); };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const at::AutoGradMode differentiable(true);
  std::vector<at::Tensor> parts;
  for (const KernelTask& task : tasks) {
    const auto options = at::TensorOptions().dtype(at::kLong).device(q.device());
    const at::Tensor query = at::arange(task.q_pos, task.q_pos + task.q_len, options).unsqueeze(1);
    const at::Tensor seen =
        at::arange(task.kv_pos, task.kv_pos + task.kv_len, options).unsqueeze(0).le(query);
    const auto heads_first = [&](const at::Tensor& x, int64_t row, int64_t rows) {
      return x.narrow(0, row, rows).transpose(0, 1).unsqueeze(0);
    };
    const auto for_queries = [&](const at::Tensor& x) {
      return heads_first(x, task.kv_row, task.kv_len).repeat_interleave(shape.heads / shape.kv_heads, 1);
    };
    const at::Tensor o = at::scaled_dot_product_attention(heads_first(q, task.q_row, task.q_len),
                                                          for_queries(k), for_queries(v), seen, 0.0,
                                                          /*is_causal=*/false, shape.scale);
    parts.push_back(o.squeeze(0).transpose(0, 1));
  }
  const at::Tensor o = at::cat(parts, 0);
  o.backward(in.dout.first.to(type));
  out.out = o.detach();
  out.dq = q.grad(), out.dk = k.grad(), out.dv = v.grad();
  return out;
}

/// The error that a kernel makes in a 16-bit type against float32, beside that of PyTorch's own attention in
/// that type: within twice as much, in the norm and at the worst entry, for O, dQ, dK and dV.
inline void expect_as_exact_as_pytorch(AttentionKernel& kernel, at::Device device, at::ScalarType type,
                                       const AttentionShape& shape, uint64_t seed, int64_t most_rows) {
  at::manual_seed(seed);
  const std::vector<KernelTask> tasks = random_tasks(seed, 6, most_rows);
  const int64_t rows = tasks.back().q_row + tasks.back().q_len;
  const int64_t keys = tasks.back().kv_row + tasks.back().kv_len;
  const auto random = [&](int64_t n, int64_t heads) {
    return at::randn({n, heads, shape.head_dim}, at::kFloat).to(device).to(type);
  };
  KernelBackward t;
  t.q = random(rows, shape.heads), t.dout = random(rows, shape.heads);
  t.k = random(keys, shape.kv_heads), t.v = random(keys, shape.kv_heads);
  const KernelBackward exact = by_pytorch(shape, tasks, t, at::kFloat),
                       theirs = by_pytorch(shape, tasks, t, type);
  const auto sums = at::TensorOptions().dtype(at::kFloat).device(device);
  t.out = at::empty_like(t.q.first), t.lse = at::empty({rows, shape.heads}, sums);
  kernel.forward(shape, tasks, t.q, t.k, t.v, t.out, t.lse);
  t.delta = row_dots(t.dout.first, t.out.first, at::kFloat);
  t.dq = at::empty(t.q.first.sizes(), sums);
  t.dk = at::empty(t.k.first.sizes(), sums), t.dv = at::empty(t.v.first.sizes(), sums);
  kernel.backward(shape, tasks, t);
  const auto compare = [&](const char* name, const at::Tensor& own, const at::Tensor& pytorchs,
                           const at::Tensor& expected) {
    // As its caller gets it.
    const at::Tensor error = own.to(type).to(at::kFloat) - expected;
    const at::Tensor allowed = pytorchs.to(at::kFloat) - expected;
    EXPECT_LE(error.norm().item<double>(), 2 * allowed.norm().item<double>()) << name;
    EXPECT_LE(error.abs().max().item<double>(), 2 * allowed.abs().max().item<double>()) << name;
    EXPECT_GT(allowed.norm().item<double>(), 0) << name;
  };
  compare("o", t.out.first, theirs.out.first, exact.out.first);
  compare("dq", t.dq, theirs.dq, exact.dq);
  compare("dk", t.dk, theirs.dk, exact.dk);
  compare("dv", t.dv, theirs.dv, exact.dv);
}

}  // namespace distca::suite
