// What GPU ranks are built from: streams ordered by events, graphs, and times that the device takes.
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attend/device.h"
#include "base/check.h"

namespace distca {
namespace {

/// Skips where there is no device.
class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device = device_of("cuda");
    } catch (const InputError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  at::Tensor numbers(double value) const {
    return at::full({1 << 20}, value, at::TensorOptions().dtype(at::kFloat).device(device));
  }

  at::Device device = at::kCPU;
};

TEST_F(CudaDevice, SaysWhatItIs) {
  EXPECT_THAT(describe_device(device), testing::ContainsRegex("GiB, CUDA [0-9]+\\.[0-9]+, NCCL [0-9]+\\."));
}

TEST_F(CudaDevice, AnEventOrdersStreams) {
  const c10::cuda::CUDAStream compute = c10::cuda::getCurrentCUDAStream(),
                              other = c10::cuda::getStreamFromPool();
  at::Tensor x = numbers(1);
  for (int i = 0; i < 100; ++i) x.add_(1);
  at::cuda::CUDAEvent made, taken;
  made.record(compute);
  made.block(other);
  at::Tensor doubled;
  {
    const c10::cuda::CUDAStreamGuard guard(other);
    doubled = x * 2;
    taken.record(other);
  }
  taken.block(compute);
  x.zero_();
  synchronize(device);
  EXPECT_EQ(doubled.min().item<float>(), 202);
  EXPECT_EQ(doubled.max().item<float>(), 202);
}

TEST_F(CudaDevice, AGraphIsCapturedOnceAndReplayed) {
  at::Tensor x = numbers(1), y = numbers(0);
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    synchronize(device);
    graph.capture_begin();
    y.add_(x * 3);
    graph.capture_end();
  }
  EXPECT_EQ(y.max().item<float>(), 0) << "a capture runs nothing";
  for (int i = 0; i < 2; ++i) graph.replay();
  synchronize(device);
  EXPECT_EQ(y.max().item<float>(), 6);
}

TEST_F(CudaDevice, TimesAreTheDevicesOwn) {
  const at::Tensor x = numbers(1);
  synchronize(device);
  const double one = device_seconds(device, [&] { x.add(1); });
  const double many = device_seconds(device, [&] {
    for (int i = 0; i < 100; ++i) x.add(1);
  });
  EXPECT_GT(one, 0);
  EXPECT_GT(many, one);
}

}  // namespace
}  // namespace distca
