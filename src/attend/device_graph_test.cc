#include "attend/device_graph.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "attend/recording_device.h"
#include "base/check.h"

namespace distca {
namespace {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class CapturedWorkTest : public ::testing::Test {
 protected:
  at::Tensor on_device(const at::Tensor& x) const { return x.to(device); }

  const at::Device device = testing::recording_device(1);
  std::unique_ptr<GraphPool> pool = make_graph_pool(device);
  CapturedWork work;
};

TEST_F(CapturedWorkTest, RunsOnWhatItsInputsHoldByThen) {
  const at::Tensor x = on_device(at::zeros({3, 4})), sum = on_device(at::zeros({3, 5}));
  const at::Tensor weight = at::randn({4, 5}), on_it = on_device(weight);
  at::Tensor y;
  work.capture(*pool, "a product", [&] {
    y = at::matmul(x, on_it);
    sum.add_(y);
  });
  EXPECT_TRUE(sum.cpu().equal(at::zeros({3, 5}))) << "capturing runs nothing";
  at::Tensor expected = at::zeros({3, 5});
  for (int run = 0; run < 3; ++run) {
    const at::Tensor input = at::randn({3, 4});
    x.copy_(input);
    work.run();
    EXPECT_TRUE(y.cpu().equal(at::matmul(input, weight)));
    expected.add_(at::matmul(input, weight));
    EXPECT_TRUE(sum.cpu().equal(expected));
  }
}

TEST_F(CapturedWorkTest, StepsOfTheHostComeInTheirPlaces) {
  const at::Tensor x = on_device(at::ones({2}));
  std::vector<float> seen;
  const auto look = [&] { seen.push_back(x.cpu().sum().item<float>()); };
  work.capture(*pool, "steps", [&] {
    work.between(look);
    x.mul_(2);
    work.between(look);
    work.between(look);
    x.mul_(3);
    work.between(look);
  });
  EXPECT_TRUE(seen.empty());
  work.run();
  work.run();
  EXPECT_THAT(seen, ::testing::ElementsAre(2, 4, 4, 12, 12, 24, 24, 72));
}

TEST_F(CapturedWorkTest, WhatTheHostWaitsForCantBeCaptured) {
  const at::Tensor x = on_device(at::ones({2}));
  EXPECT_EQ(
      error_of([&] { work.capture(*pool, "layer 3", [&] { x.sum().item(); }); }),
      "layer 3 can't be captured in a graph: in aten::_local_scalar_dense the host waits for the device");
  // The device goes on as before.
  x.add_(1);
  EXPECT_TRUE(x.cpu().equal(at::full({2}, 2.0f)));
  work.capture(*pool, "layer 3", [&] { x.add_(1); });
  work.run();
  EXPECT_TRUE(x.cpu().equal(at::full({2}, 3.0f)));
}

TEST(DeviceGraph, TheCpuHasNone) {
  EXPECT_FALSE(has_graphs(at::kCPU));
  EXPECT_EQ(error_of([] { make_graph_pool(at::kCPU); }),
            "work on device 'cpu' can't be captured in graphs: only 'cuda' has them");
}

}  // namespace
}  // namespace distca
