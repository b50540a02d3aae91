// Flash attention on a device: how exact it is in bfloat16, and that tables made before give what it makes of
// the tasks itself.
#include "attend/flash_kernel.h"

#include <ATen/Context.h>
#include <ATen/ops/_pin_memory.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include "attend/device.h"
#include "attend/kernel_suite.h"
#include "base/check.h"

namespace distca {
namespace {

/// Skips where there is no device.
class FlashOnACudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device = device_of("cuda");
    } catch (const InputError& error) {
      GTEST_SKIP() << error.what();
    }
    at::globalContext().setAllowTF32CuBLAS(false);
  }

  at::Device device = at::kCPU;
};

TEST_F(FlashOnACudaDevice, MakesAtMostTwiceTheErrorOfPytorchsAttentionInBFloat16) {
  for (const AttentionShape& shape : {AttentionShape{4, 4, 64, 0.125}, AttentionShape{8, 2, 128, 0.088}}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", head_dim " + std::to_string(shape.head_dim));
      suite::expect_as_exact_as_pytorch(*make_flash_kernel(1), device, at::kBFloat16, shape, seed,
                                        seed % 2 == 0 ? 64 : 512);
    }
  }
}

TEST_F(FlashOnACudaDevice, IsTheSameWithTablesThatWereMadeBefore) {
  const AttentionShape shape{8, 2, 128, 0.088};
  const std::vector<KernelTask> tasks = suite::random_tasks(5, 6, 200);
  const int64_t rows = tasks.back().q_row + tasks.back().q_len;
  const int64_t keys = tasks.back().kv_row + tasks.back().kv_len;
  const auto kernel = make_flash_kernel(1);
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device);
  const at::Tensor q = at::randn({rows, shape.heads, shape.head_dim}, options);
  const at::Tensor k = at::randn({keys, shape.kv_heads, shape.head_dim}, options), v = at::randn_like(k);
  const auto tables =
      kernel->prepare(shape, tasks, {rows, keys, rows})
          ->mapped([&](const at::Tensor& x) { return at::_pin_memory(x, device); })
          ->mapped([&](const at::Tensor& x) { return x.to(device, x.scalar_type(), /*non_blocking=*/true); });
  at::Tensor o[2], lse[2];
  for (const KernelTables* given : {static_cast<const KernelTables*>(nullptr), tables.get()}) {
    const size_t i = given == nullptr ? 0 : 1;
    o[i] = at::empty_like(q);
    lse[i] = at::empty({rows, shape.heads}, options.dtype(at::kFloat));
    kernel->forward(shape, {tasks, given}, q, k, v, o[i], lse[i]);
  }
  EXPECT_TRUE(o[0].equal(o[1]));
  EXPECT_TRUE(lse[0].equal(lse[1]));
}

}  // namespace
}  // namespace distca
