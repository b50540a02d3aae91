#include "comm/cpu_device.h"

#include <gtest/gtest.h>

#include <string>

namespace distca {
namespace {

TEST(CpuDevice, StreamsAreOrderedByTheEventsThatTheyWaitForAlone) {
  CpuDevice device(CpuDevice::Memory::kDevice);
  const Stream a = device.make_stream("a"), b = device.make_stream("b");
  const Event gate = device.make_gate();
  std::string order;
  device.wait(a, gate);
  device.run(a, [&] { order += '1'; });
  const Event first = device.record(a);
  device.run(b, [&] { order += '0'; });
  device.wait(b, first);
  device.run(b, [&] { order += '2'; });
  const Event second = device.record(b);
  EXPECT_EQ(order, "0");
  EXPECT_FALSE(device.done(first));
  device.open(gate);
  EXPECT_EQ(order, "012");
  EXPECT_TRUE(device.done(first) && device.done(second));
}

TEST(CpuDevice, MemoryMayBeReleasedWhileQueuedWorkUsesIt) {
  CpuDevice device(CpuDevice::Memory::kHost);
  const Stream stream = device.make_stream("a");
  const Event gate = device.make_gate();
  double host = 0;
  auto* scratch = static_cast<double*>(device.allocate(sizeof(double), stream));
  EXPECT_TRUE(device.holds(scratch));
  EXPECT_FALSE(device.holds(&host));
  *scratch = 3;
  device.wait(stream, gate);
  device.combine(scratch, scratch, 1, DType::kFloat64, ReduceOp::kSum, stream);
  device.copy(&host, scratch, sizeof(double), stream);
  device.release(scratch);
  EXPECT_FALSE(device.holds(scratch));
  device.open(gate);
  EXPECT_EQ(host, 6);
  void* reachable = device.allocate_host(0);
  EXPECT_FALSE(device.holds(reachable));
  device.release_host(reachable);
}

TEST(CpuDevice, EachThreadHasItsOwnCurrentStream) {
  CpuDevice device(CpuDevice::Memory::kDevice), other(CpuDevice::Memory::kDevice);
  const Stream stream = device.make_stream("a");
  device.set_current_stream(stream);
  EXPECT_EQ(device.current_stream(), stream);
  EXPECT_FALSE(other.current_stream() == stream);
  EXPECT_TRUE(CpuDevice(CpuDevice::Memory::kDevice).holds(&stream));
}

}  // namespace
}  // namespace distca
