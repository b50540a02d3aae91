#include "attend/recording_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

namespace distca {
namespace {

using Kind = StreamEntry::Kind;

TEST(RecordingDevice, ComputesWhatTheCpuDoes) {
  const at::Device device = testing::recording_device(3);
  const at::Tensor a = at::randn({7, 5}), b = at::randn({5, 6});
  const at::Tensor on_device = a.to(device), other = b.to(device);
  EXPECT_EQ(on_device.device(), device);
  const auto work = [](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor z = at::matmul(x, y);
    z.narrow(0, 2, 3).mul_(2);
    z.index_copy_(0, at::arange(2, z.options().dtype(at::kLong)), z.narrow(0, 4, 2).clone());
    return at::cat({z.t().contiguous(), z.t().exp()}, 1).sum(0);
  };
  EXPECT_TRUE(work(on_device, other).cpu().equal(work(a, b)));
}

TEST(RecordingDevice, DifferentiatesWhatTheCpuDoes) {
  const at::Device device = testing::recording_device(0);
  const at::Tensor a = at::randn({7, 5}), b = at::randn({5, 6});
  const at::Tensor x = a.clone().requires_grad_(), y = a.to(device).requires_grad_();
  at::matmul(x, b).tanh().sum().backward();
  at::matmul(y, b.to(device)).tanh().sum().backward();
  EXPECT_TRUE(y.grad().cpu().equal(x.grad()));
}

TEST(RecordingDevice, RefusesTensorsOfTheCpu) {
  const at::Tensor x = at::randn({4}).to(testing::recording_device(0));
  EXPECT_ANY_THROW(at::cat({x, at::randn({4})}).cpu());
}

TEST(RecordingDevice, LogsAccessesEventsAndHostWaits) {
  const at::Device device = testing::recording_device(2);
  const c10::impl::VirtualGuardImpl guard(at::kPrivateUse1);
  StreamLog log;
  testing::record_to(device, &log);
  {
    at::Tensor x = at::empty({16}, at::TensorOptions().device(device));
    x.fill_(1);
    const c10::Stream other = guard.getNewStream(device);
    c10::Event filled(at::kPrivateUse1);
    filled.record(guard.getStream(device));
    const c10::Stream before = guard.exchangeStream(other);
    filled.block(other);
    x.add_(1);
    guard.exchangeStream(before);
    EXPECT_EQ(x.sum().item<double>(), 32);  // not ordered
  }
  testing::record_to(device, nullptr);
  const std::vector<StreamEntry> entries = log.take();
  const auto count = [&](Kind kind) {
    return std::count_if(entries.begin(), entries.end(),
                         [&](const auto& entry) { return entry.kind == kind; });
  };
  EXPECT_EQ(count(Kind::kRecord), 1);
  EXPECT_EQ(count(Kind::kWait), 1);
  EXPECT_EQ(count(Kind::kHostWait), 1);
  EXPECT_GE(count(Kind::kRelease), 1);
  const auto races = unordered_accesses(entries);
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races[0].find("stream 0 reads 64 bytes in aten::sum"), 0u) << races[0];
}

}  // namespace
}  // namespace distca
