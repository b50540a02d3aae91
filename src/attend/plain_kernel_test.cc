#include "attend/plain_kernel.h"

#include "attend/kernel_suite.h"
#include "attend/recording_device.h"

namespace distca {
namespace {

TEST(PlainKernel, EqualsReference) {
  const auto kernel = make_plain_kernel(1);
  suite::expect_equals_reference(*kernel, at::kCPU, at::kDouble, 1e-12);
  suite::expect_equals_reference(*kernel, at::kCPU, at::kFloat, 2e-5);
  suite::expect_equals_reference(*kernel, at::kCPU, at::kBFloat16, 0.1);
}

TEST(PlainKernel, EqualsReferenceWithSlidingWindows) {
  for (const int64_t window : {0, 1, 7, 64})
    suite::expect_equals_reference(*make_plain_kernel(1), at::kCPU, at::kDouble, 1e-12, window);
}

TEST(PlainKernel, RunsOnADeviceThatIsNotTheCpu) {
  suite::expect_equals_reference(*make_plain_kernel(1), testing::recording_device(1), at::kDouble, 1e-12);
}

TEST(PlainKernel, EqualsReferenceOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  suite::expect_equals_reference(*make_plain_kernel(1), at::kCUDA, at::kDouble, 1e-12);
  at::globalContext().setAllowTF32CuBLAS(false);
  suite::expect_equals_reference(*make_plain_kernel(1), at::kCUDA, at::kFloat, 2e-5);
}

}  // namespace
}  // namespace distca
