#include "attend/flash_kernel.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attend/cpu_kernels.h"
#include "base/check.h"

namespace distca {
namespace {

/// Whole documents, tasks on the diagonal with a prefix, full tasks, rows without keys, empty tasks.
const std::vector<KernelTask> kTasks = {
    {.q_row = 0, .q_len = 37, .kv_row = 0, .kv_len = 37, .o_row = 0},
    {.q_row = 37, .q_len = 20, .q_pos = 50, .kv_row = 37, .kv_len = 70, .o_row = 37},
    {.q_row = 57, .q_len = 11, .q_pos = 90, .kv_row = 37, .kv_len = 60, .o_row = 57},
    {.q_row = 68, .q_len = 9, .q_pos = 5, .kv_row = 107, .kv_len = 6, .kv_pos = 8, .o_row = 68},
    {.q_row = 77, .q_len = 3, .q_pos = 5, .kv_row = 0, .kv_len = 0, .o_row = 77},
    {.q_row = 80, .q_len = 0, .kv_row = 0, .kv_len = 3, .o_row = 80}};
constexpr int64_t kRows = 80, kKeys = 113;

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor same = a.eq(b);
  return (a - b).abs().masked_fill(same, 0).max().item<double>();
}

void expect_equal_kernels(at::ScalarType type, double tolerance) {
  at::manual_seed(1);
  const AttentionShape shape{4, 2, 16, 0.25};
  const auto options = at::TensorOptions().dtype(type);
  const at::Tensor q = at::randn({kRows, 4, 16}, options), dout = at::randn({kRows, 4, 16}, options);
  const at::Tensor k = at::randn({kKeys, 2, 16}, options), v = at::randn({kKeys, 2, 16}, options);
  const auto expected_kernel = make_reference_kernel(1), kernel = make_pytorch_kernel(1);
  const auto sums = options.dtype(accumulator_type(type));
  at::Tensor expected_o = at::full({kRows, 4, 16}, NAN, options), o = expected_o.clone();
  at::Tensor expected_lse = at::full({kRows, 4}, NAN, sums), lse = expected_lse.clone();
  expected_kernel->forward(shape, kTasks, q, k, v, expected_o, expected_lse);
  kernel->forward(shape, kTasks, q, k, v, o, lse);
  EXPECT_LE(largest_difference(o, expected_o), tolerance);
  EXPECT_LE(largest_difference(lse, expected_lse), tolerance);

  KernelBackward expected{q, k, v, dout, expected_o, expected_lse, {}, {}, {}, {}};
  expected.delta = (dout.to(sums.dtype()) * expected_o.to(sums.dtype())).sum(-1);
  expected.dq = at::full({kRows, 4, 16}, NAN, sums);
  expected.dk = at::full({kKeys, 2, 16}, NAN, sums);
  expected.dv = expected.dk.clone();
  KernelBackward actual = expected;
  actual.dq = expected.dq.clone();
  actual.dk = expected.dk.clone();
  actual.dv = expected.dv.clone();
  expected_kernel->backward(shape, kTasks, expected);
  kernel->backward(shape, kTasks, actual);
  EXPECT_LE(largest_difference(actual.dq, expected.dq), tolerance);
  EXPECT_LE(largest_difference(actual.dk, expected.dk), tolerance);
  EXPECT_LE(largest_difference(actual.dv, expected.dv), tolerance);
}

TEST(PytorchKernel, EqualsReferenceInFloat64) {
  expect_equal_kernels(at::kDouble, 1e-12);
}
TEST(PytorchKernel, EqualsReferenceInFloat32) {
  expect_equal_kernels(at::kFloat, 2e-5);
}
TEST(PytorchKernel, EqualsReferenceInBFloat16) {
  expect_equal_kernels(at::kBFloat16, 0.1);
}

TEST(PytorchKernel, RefusesSlidingWindows) {
  at::Tensor none;
  EXPECT_THROW(make_pytorch_kernel(1)->forward({1, 1, 8, 1.0, 4}, kTasks, none, none, none, none, none),
               InputError);
}

TEST(FlashKernel, RefusesFloat32WithALineThatSaysWhatToDo) {
  at::Tensor q = at::randn({1, 1, 8});
  try {
    make_flash_kernel(1)->forward({1, 1, 8, 1.0}, {}, q, q, q, q, q);
    FAIL() << "float32 passed";
  } catch (const InputError& fault) {
    EXPECT_NE(std::string(fault.what()).find("bfloat16"), std::string::npos);
  }
}

/// Runs where a GPU is: the same tasks in bfloat16 against the reference on the CPU.
TEST(FlashKernel, EqualsReferenceOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  at::manual_seed(1);
  const AttentionShape shape{4, 2, 20, 0.25};
  const at::Tensor q = at::randn({kRows, 4, 20}, at::kBFloat16), k = at::randn({kKeys, 2, 20}, at::kBFloat16);
  const at::Tensor v = at::randn({kKeys, 2, 20}, at::kBFloat16),
                   dout = at::randn({kRows, 4, 20}, at::kBFloat16);
  KernelBackward expected{q,
                          k,
                          v,
                          dout,
                          at::full({kRows, 4, 20}, NAN, at::kBFloat16),
                          at::full({kRows, 4}, NAN),
                          {},
                          at::full({kRows, 4, 20}, NAN),
                          at::full({kKeys, 2, 20}, NAN),
                          at::full({kKeys, 2, 20}, NAN)};
  make_reference_kernel(1)->forward(shape, kTasks, q, k, v, expected.out, expected.lse);
  expected.delta = (dout.to(at::kFloat) * expected.out.first.to(at::kFloat)).sum(-1);
  KernelBackward actual;
  const at::Device gpu(at::kCUDA);
  for (auto member : {&KernelBackward::q, &KernelBackward::k, &KernelBackward::v, &KernelBackward::dout,
                      &KernelBackward::out, &KernelBackward::lse, &KernelBackward::delta})
    actual.*member = (expected.*member).first.to(gpu);
  for (auto member : {&KernelBackward::dq, &KernelBackward::dk, &KernelBackward::dv})
    actual.*member = (expected.*member).to(gpu);
  make_flash_kernel(1)->forward(shape, kTasks, actual.q, actual.k, actual.v, actual.out, actual.lse);
  EXPECT_LE(largest_difference(actual.out.first.cpu().to(at::kFloat), expected.out.first.to(at::kFloat)),
            0.03);
  EXPECT_LE(largest_difference(actual.lse.first.cpu(), expected.lse.first), 1e-2);
  make_reference_kernel(1)->backward(shape, kTasks, expected);
  make_flash_kernel(1)->backward(shape, kTasks, actual);
  EXPECT_LE(largest_difference(actual.dq.cpu(), expected.dq), 0.1);
  EXPECT_LE(largest_difference(actual.dk.cpu(), expected.dk), 0.1);
  EXPECT_LE(largest_difference(actual.dv.cpu(), expected.dv), 0.1);
}

}  // namespace
}  // namespace distca
