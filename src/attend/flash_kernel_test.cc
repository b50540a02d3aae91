#include "attend/flash_kernel.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include "attend/cpu_kernels.h"
#include "attend/kernel_suite.h"
#include "attend/pytorch_kernel.h"
#include "base/check.h"

namespace distca {
namespace {

TEST(PytorchKernel, EqualsReferenceInFloat64) {
  suite::expect_equals_reference(*make_pytorch_kernel(1), at::kCPU, at::kDouble, 1e-12);
}
TEST(PytorchKernel, EqualsReferenceInFloat32) {
  suite::expect_equals_reference(*make_pytorch_kernel(1), at::kCPU, at::kFloat, 2e-5);
}
TEST(PytorchKernel, EqualsReferenceInBFloat16) {
  suite::expect_equals_reference(*make_pytorch_kernel(1), at::kCPU, at::kBFloat16, 0.1);
}

TEST(PytorchKernel, RefusesSlidingWindows) {
  at::Tensor none;
  EXPECT_THROW(
      make_pytorch_kernel(1)->forward({1, 1, 8, 1.0, 4}, suite::kTasks, none, none, none, none, none),
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
  const at::Tensor q = at::randn({suite::kRows, 4, 20}, at::kBFloat16),
                   k = at::randn({suite::kKeys, 2, 20}, at::kBFloat16);
  const at::Tensor v = at::randn({suite::kKeys, 2, 20}, at::kBFloat16),
                   dout = at::randn({suite::kRows, 4, 20}, at::kBFloat16);
  KernelBackward expected{q,
                          k,
                          v,
                          dout,
                          at::full({suite::kRows, 4, 20}, NAN, at::kBFloat16),
                          at::full({suite::kRows, 4}, NAN),
                          {},
                          at::full({suite::kRows, 4, 20}, NAN),
                          at::full({suite::kKeys, 2, 20}, NAN),
                          at::full({suite::kKeys, 2, 20}, NAN)};
  make_reference_kernel(1)->forward(shape, suite::kTasks, q, k, v, expected.out, expected.lse);
  expected.delta = (dout.to(at::kFloat) * expected.out.first.to(at::kFloat)).sum(-1);
  KernelBackward actual;
  const at::Device gpu(at::kCUDA);
  for (auto member : {&KernelBackward::q, &KernelBackward::k, &KernelBackward::v, &KernelBackward::dout,
                      &KernelBackward::out, &KernelBackward::lse, &KernelBackward::delta})
    actual.*member = (expected.*member).first.to(gpu);
  for (auto member : {&KernelBackward::dq, &KernelBackward::dk, &KernelBackward::dv})
    actual.*member = (expected.*member).to(gpu);
  make_flash_kernel(1)->forward(shape, suite::kTasks, actual.q, actual.k, actual.v, actual.out, actual.lse);
  EXPECT_LE(
      suite::largest_difference(actual.out.first.cpu().to(at::kFloat), expected.out.first.to(at::kFloat)),
      0.03);
  EXPECT_LE(suite::largest_difference(actual.lse.first.cpu(), expected.lse.first), 1e-2);
  make_reference_kernel(1)->backward(shape, suite::kTasks, expected);
  make_flash_kernel(1)->backward(shape, suite::kTasks, actual);
  EXPECT_LE(suite::largest_difference(actual.dq.cpu(), expected.dq), 0.1);
  EXPECT_LE(suite::largest_difference(actual.dk.cpu(), expected.dk), 0.1);
  EXPECT_LE(suite::largest_difference(actual.dv.cpu(), expected.dv), 0.1);
}

}  // namespace
}  // namespace distca
