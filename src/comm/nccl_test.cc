#include "comm/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/sanitizer.h"
#include "comm/cpu_device.h"
#include "comm/fabric_suite.h"
#include "comm/nccl_threads.h"

namespace distca {
namespace {

/// A fabric of one device memory after whose operations the host may look at the data.
class SynchronizedFabric : public Fabric {
 public:
  SynchronizedFabric(std::unique_ptr<Fabric> owned, Fabric& inner, CpuDevice& device)
      : owned_(std::move(owned)), inner_(inner), device_(device) {}

  int32_t rank() const override { return inner_.rank(); }
  int32_t world_size() const override { return inner_.world_size(); }
  std::string kind() const override { return inner_.kind(); }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) override {
    return std::make_unique<SynchronizedPending>(inner_.all_to_all(std::move(parts), std::move(name)), device_);
  }
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name) override {
    inner_.all_reduce(data, count, dtype, op, name);
    synchronize();
  }
  void reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                      const std::string& name) override {
    inner_.reduce_scatter(data, out, count, dtype, name);
    synchronize();
  }
  void all_gather(const void* data, void* out, int64_t bytes, const std::string& name) override {
    inner_.all_gather(data, out, bytes, name);
    synchronize();
  }
  void broadcast(void* data, int64_t bytes, int32_t root, const std::string& name) override {
    inner_.broadcast(data, bytes, root, name);
    synchronize();
  }
  void send(const void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    inner_.send(data, bytes, peer, name);
    synchronize();
  }
  void receive(void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    inner_.receive(data, bytes, peer, name);
    synchronize();
  }
  void barrier(const std::string& name) override { inner_.barrier(name); }
  void abort(const std::string& message) override { inner_.abort(message); }
  std::unique_ptr<Fabric> split(int32_t color, const std::string& name) override {
    auto part = inner_.split(color, name);
    Fabric& inner = *part;
    return std::make_unique<SynchronizedFabric>(std::move(part), inner, device_);
  }

 private:
  class SynchronizedPending : public Pending {
   public:
    SynchronizedPending(std::unique_ptr<Pending> inner, CpuDevice& device)
        : inner_(std::move(inner)), device_(device) {}
    void wait() override {
      inner_->wait();
      device_.synchronize(device_.current_stream());
    }
    bool done() override { return inner_->done(); }
    PendingEnd end() override { return inner_->end(); }

   private:
    std::unique_ptr<Pending> inner_;
    CpuDevice& device_;
  };

  void synchronize() { device_.synchronize(device_.current_stream()); }

  std::unique_ptr<Fabric> owned_;
  Fabric& inner_;
  CpuDevice& device_;
};

TEST(NcclFabric, DoesWhatEveryFabricMust) {
  for (const auto memory : {CpuDevice::Memory::kDevice, CpuDevice::Memory::kHost}) {
    for (int32_t ranks : {1, 2, 3, 8}) {
      const uint64_t seed = std::random_device()();
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, seed " << seed);
      const auto device = std::make_shared<CpuDevice>(memory);
      run_nccl_thread_ranks(ranks, {}, device, [&](Fabric& fabric) {
        EXPECT_EQ(fabric.world_size(), ranks);
        EXPECT_EQ(fabric.kind(), "nccl");
        SynchronizedFabric synchronized(nullptr, fabric, *device);
        suite::check_all(memory == CpuDevice::Memory::kDevice ? synchronized : fabric, seed);
      });
    }
  }
}

}  // namespace
}  // namespace distca
