#include "comm/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <set>

#include "base/clock.h"
#include "comm/cpu_device.h"
#include "comm/fabric_suite.h"
#include "comm/nccl_faults.h"
#include "comm/nccl_threads.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A fabric of one device memory after whose operations the host may look at the data.
class SynchronizedFabric : public Fabric {
 public:
  SynchronizedFabric(std::unique_ptr<Fabric> owned, Fabric& inner, CpuDevice& device)
      : owned_(std::move(owned)), inner_(inner), device_(device) {}

  int32_t rank() const override { return inner_.rank(); }
  int32_t world_size() const override { return inner_.world_size(); }
  std::string kind() const override { return inner_.kind(); }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) override {
    return std::make_unique<SynchronizedPending>(inner_.all_to_all(std::move(parts), std::move(name)),
                                                 device_);
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

/// The message of the error that the ranks end with.
std::string error_of(int32_t ranks, const NcclOptions& options, const std::function<void(Fabric&)>& body) {
  try {
    run_nccl_thread_ranks(ranks, options, std::make_shared<CpuDevice>(CpuDevice::Memory::kHost), body);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<ExchangePart> bytes_with_all(const Fabric& fabric, const char* send, char* recv) {
  std::vector<PeerBytes> all;
  for (int32_t peer = 0; peer < fabric.world_size(); ++peer) all.push_back({peer, peer, 1});
  return {{send, recv, all, all}};
}

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

TEST(NcclFabric, DoesTheSameWhereCallsReturnBeforeTheOthersHaveCalled) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  for (const auto memory : {CpuDevice::Memory::kDevice, CpuDevice::Memory::kHost}) {
    const auto device = std::make_shared<CpuDevice>(memory);
    testing::NcclFaults faults;
    faults.launch = [](int32_t) { return 0; };
    const auto library = testing::make_faulty_nccl(make_nccl_for_threads(device), device, faults);
    const auto store = std::make_shared<MemoryStore>();
    std::vector<NcclJob> jobs;
    for (int32_t rank = 0; rank < 3; ++rank) jobs.push_back({device, library, store, rank, 3, {}});
    run_nccl_thread_ranks(jobs, [&](Fabric& fabric) {
      SynchronizedFabric synchronized(nullptr, fabric, *device);
      suite::check_all(memory == CpuDevice::Memory::kDevice ? synchronized : fabric, seed);
    });
  }
}

TEST(NcclFabric, TransfersAreOrderedWithTheCallersStreamAndTheHostWaitsForNeither) {
  const auto device = std::make_shared<CpuDevice>(CpuDevice::Memory::kDevice);
  std::vector<std::vector<char>> send(2, std::vector<char>(2)), recv = send, seen = send;
  std::vector<double> sums(2), seen_sums(2);
  run_nccl_thread_ranks(2, {}, device, [&](Fabric& fabric) {
    const int32_t rank = fabric.rank();
    const Stream stream = device->current_stream();
    const Event gate = device->make_gate();
    device->wait(stream, gate);
    device->run(stream, [&, rank] {
      send[rank] = {static_cast<char>(10 + rank), static_cast<char>(20 + rank)};
      sums[rank] = 1 + rank;
    });
    const auto pending =
        fabric.all_to_all(bytes_with_all(fabric, send[rank].data(), recv[rank].data()), "it");
    pending->wait();
    device->run(stream, [&, rank] { seen[rank] = recv[rank]; });
    fabric.all_reduce(std::span<double>(&sums[rank], 1), ReduceOp::kSum, "sum");
    device->run(stream, [&, rank] { seen_sums[rank] = sums[rank]; });
    EXPECT_FALSE(pending->done());
    EXPECT_EQ(seen[rank][0], 0);
    device->open(gate);
    device->synchronize(stream);
    EXPECT_TRUE(pending->done());
    EXPECT_EQ(seen[rank],
              (std::vector<char>{static_cast<char>(10 + 10 * rank), static_cast<char>(11 + 10 * rank)}));
    EXPECT_EQ(seen_sums[rank], 3);
    const double end = pending->end().time;
    EXPECT_LE(end, fabric.now());
  });
}

TEST(NcclFabric, AnExchangeThatIsGivenUpIsOrderedBeforeWhatComesNext) {
  for (const auto memory : {CpuDevice::Memory::kDevice, CpuDevice::Memory::kHost}) {
    const auto device = std::make_shared<CpuDevice>(memory);
    std::vector<std::vector<char>> recv(2, std::vector<char>(2, 'x'));
    run_nccl_thread_ranks(2, {}, device, [&](Fabric& fabric) {
      const int32_t rank = fabric.rank();
      std::vector<char> send = {'a', 'b'};
      auto pending = fabric.all_to_all(bytes_with_all(fabric, send.data(), recv[rank].data()), "it");
      rank == 0 ? pending.reset() : pending->wait();
      device->run(device->current_stream(), [&, rank] { recv[rank][0] = 'z'; });
      device->synchronize(device->current_stream());
      fabric.barrier("end");
    });
    const char host = memory == CpuDevice::Memory::kHost ? 'x' : 'a';
    EXPECT_EQ(recv[0], (std::vector<char>{'z', host}));  // what came to the host's memory is dropped
    EXPECT_EQ(recv[1], (std::vector<char>{'z', 'b'}));
  }
}

TEST(NcclFabric, BuffersAreFreeOnceARankLeavesWithAnExchangeUnderWay) {
  for (const auto memory : {CpuDevice::Memory::kDevice, CpuDevice::Memory::kHost}) {
    for (int32_t dropper : {0, 1, 2}) {
      std::atomic<bool> dropped = false;
      std::string message;
      try {
        run_nccl_thread_ranks(
            3, {.timeout_s = 600}, std::make_shared<CpuDevice>(memory), [&](Fabric& fabric) {
              std::vector<char> send(3), recv(3);  // freed by the one that throws, before the others come
              while (fabric.rank() != dropper && !dropped) std::this_thread::yield();
              try {
                const auto pending =
                    fabric.all_to_all(bytes_with_all(fabric, send.data(), recv.data()), "it");
                if (fabric.rank() == dropper) throw Error("dropped");
                pending->wait();
                fabric.barrier("next");
              } catch (...) {
                send = recv = {};
                send.shrink_to_fit();
                dropped = true;
                throw;
              }
            });
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_EQ(message, "rank " + std::to_string(dropper) + ": dropped");
    }
  }
}

/// Remembers which streams a range of memory was stated for.
class StatingDevice : public CpuDevice {
 public:
  StatingDevice() : CpuDevice(Memory::kDevice) {}
  void reads(Stream stream, const void* pointer, int64_t bytes) override {
    state(stream, pointer, bytes, 'r');
  }
  void writes(Stream stream, const void* pointer, int64_t bytes) override {
    state(stream, pointer, bytes, 'w');
  }

  struct Statement {
    void* stream;
    const void* pointer;
    int64_t bytes;
    char kind;
    bool operator<=>(const Statement&) const = default;
  };
  /// Those of one range, whatever the stream; and the streams.
  std::set<void*> streams_of(const void* pointer, int64_t bytes, char kind) {
    const std::lock_guard lock(mutex_);
    std::set<void*> out;
    for (const Statement& s : statements_)
      if (s.pointer == pointer && s.bytes == bytes && s.kind == kind) out.insert(s.stream);
    return out;
  }

 private:
  void state(Stream stream, const void* pointer, int64_t bytes, char kind) {
    const std::lock_guard lock(mutex_);
    statements_.push_back({stream.handle, pointer, bytes, kind});
  }
  std::mutex mutex_;
  std::vector<Statement> statements_;
};

TEST(NcclFabric, StatesWhatEachTransferReadsAndWritesOnWhichStream) {
  const auto device = std::make_shared<StatingDevice>();
  run_nccl_thread_ranks(2, {}, device, [&](Fabric& fabric) {
    std::vector<char> send(2), recv(2);
    double total = 1;
    const auto part = fabric.split(0, "all");
    fabric.all_to_all(bytes_with_all(fabric, send.data(), recv.data()), "it")->wait();
    part->all_reduce(std::span<double>(&total, 1), ReduceOp::kSum, "sum");
    device->synchronize(device->current_stream());
    const auto sent = device->streams_of(&send[0], 1, 'r'), came = device->streams_of(&recv[1], 1, 'w');
    const auto summed = device->streams_of(&total, sizeof total, 'w');
    EXPECT_EQ(sent, came);
    EXPECT_EQ(sent.size(), 1u);
    EXPECT_EQ(summed, device->streams_of(&total, sizeof total, 'r'));
    EXPECT_NE(summed, sent);  // a split fabric has a stream of its own
    EXPECT_FALSE(sent.contains(device->current_stream().handle));
  });
}

TEST(NcclFabric, AnExchangeHoldsUpNoOtherFabric) {
  const auto device = std::make_shared<CpuDevice>(CpuDevice::Memory::kHost);
  std::atomic<int> done = 0;
  run_nccl_thread_ranks(3, {}, device, [&](Fabric& fabric) {
    const auto part = fabric.split(fabric.rank() / 2, "part");
    std::vector<char> send(3), recv(3);
    while (fabric.rank() == 2 && done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto pending = fabric.all_to_all(bytes_with_all(fabric, send.data(), recv.data()), "whole");
    if (fabric.rank() < 2) {
      double x = 1;
      part->all_reduce(std::span<double>(&x, 1), ReduceOp::kSum, "part");
      EXPECT_EQ(x, 2);
      fabric.rank() == 0 ? fabric.send("m", 1, 1, "message") : fabric.receive(recv.data(), 1, 0, "message");
      EXPECT_FALSE(pending->done());
      ++done;
    }
    pending->wait();
  });
}

TEST(NcclFabric, AnExpiredWaitForARankThatWaitsItselfNamesWhomThatOneWaitsFor) {
  std::atomic<bool> ended = false;
  const std::string message = error_of(3, {.timeout_s = .3, .grace_s = .5}, [&](Fabric& fabric) {
    char byte = 0;
    if (fabric.rank() == 2) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    // Rank 1 begins to wait later than the one that waits for it.
    if (fabric.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    try {
      fabric.receive(&byte, 1, fabric.rank() + 1, fabric.rank() == 0 ? "activations" : "gradients");
    } catch (...) {
      ended = true;
      throw;
    }
  });
  EXPECT_THAT(message, StartsWith("rank 0 waited 0.3"));
  EXPECT_THAT(message,
              HasSubstr(" s for rank 1 in activations, which waits for rank 2 in gradients, which last "
                        "began the start of the job 0."));
}

TEST(NcclFabric, RankThatThrowsEndsAllWithItsMessage) {
  std::vector<std::string> messages(4);
  const double begun = wall_seconds();
  const std::string first = error_of(4, {.timeout_s = 600}, [&](Fabric& fabric) {
    try {
      const auto half = fabric.split(fabric.rank() / 2, "halves");
      if (fabric.rank() == 3) throw std::runtime_error("no more memory");
      fabric.barrier("step 1");
    } catch (const std::exception& error) {
      messages[fabric.rank()] = error.what();
      throw;
    }
  });
  EXPECT_LT(wall_seconds() - begun, 5);
  EXPECT_EQ(first, "rank 3: no more memory");
  for (int32_t rank : {0, 1, 2})
    EXPECT_THAT(messages[rank], AllOf(HasSubstr(" stopped "), HasSubstr("rank 3: no more memory")));
  EXPECT_THROW(run_nccl_thread_ranks(2, {}, std::make_shared<CpuDevice>(CpuDevice::Memory::kHost),
                                     [](Fabric& fabric) {
                                       if (fabric.rank() == 1) throw InputError("heads 3 and 2 don't divide");
                                       fabric.barrier("start");
                                     }),
               InputError);
}

TEST(NcclFabric, AbortEndsAllRanks) {
  std::atomic<int> stopped = 0;
  const double begun = wall_seconds();
  error_of(4, {.timeout_s = 600}, [&](Fabric& fabric) {
    try {
      const auto part = fabric.split(fabric.rank() / 2, "halves");
      if (fabric.rank() == 3) return part->abort("the plan doesn't fit");
      while (true) fabric.rank() < 2 ? part->barrier("tick") : fabric.barrier("step");
    } catch (const PeerError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 3: the plan doesn't fit"));
      ++stopped;
    }
  });
  EXPECT_EQ(stopped, 3);
  EXPECT_LT(wall_seconds() - begun, 5);
}

TEST(NcclFabric, DifferentCallsAreToldApartWhereTheyAreChecked) {
  const NcclOptions checked = {.timeout_s = 600, .grace_s = .5, .check_calls = true};
  const std::string other_kind = error_of(2, checked, [](Fabric& fabric) {
    int64_t value = 0;
    if (fabric.rank() == 0) fabric.barrier("step 7");
    if (fabric.rank() == 1) fabric.all_reduce(&value, 1, DType::kInt64, ReduceOp::kMax, "loss");
  });
  EXPECT_THAT(other_kind, AllOf(HasSubstr("rank 0"), HasSubstr("barrier 'step 7'"), HasSubstr("rank 1"),
                                HasSubstr("all_reduce 'loss' of 1 int64 (max)")));
  const std::string other_message = error_of(2, checked, [](Fabric& fabric) {
    std::vector<char> data(10);
    if (fabric.rank() == 0) fabric.send(data.data(), 4, 1, "half");
    if (fabric.rank() == 1) fabric.receive(data.data(), 5, 0, "half");
  });
  EXPECT_THAT(other_message, AllOf(HasSubstr("'half' of 4 bytes"), HasSubstr("'half' of 5 bytes")));
  const std::string other_size = error_of(3, checked, [&](Fabric& fabric) {
    std::vector<char> send(16), recv(16);
    std::vector<ExchangePart> parts(2);
    parts[1] = {send.data(), recv.data(), {}, {}};
    if (fabric.rank() == 1) parts[1].sends = {{2, 0, 8}};
    if (fabric.rank() == 2) parts[1].receives = {{1, 0, 9}};
    fabric.all_to_all(parts, "collect layer 0")->wait();
  });
  EXPECT_EQ(other_size, "rank 2: part 1 of collect layer 0: rank 1 sends 8 bytes to rank 2, which expects 9");
  const uint64_t seed = std::random_device()();
  EXPECT_EQ(error_of(3, checked, [&](Fabric& fabric) { suite::check_all(fabric, seed); }), "no error");
}

TEST(NcclFabric, WrongCallsAreErrors) {
  EXPECT_EQ(error_of(2, {}, [](Fabric& fabric) { fabric.broadcast(nullptr, 0, 2, "plan"); }).substr(8),
            "plan names rank 2 of 2");
  EXPECT_EQ(error_of(1, {}, [](Fabric& fabric) { fabric.send(nullptr, 0, 0, "plan"); }),
            "rank 0 sends plan to itself");
  EXPECT_THROW(run_nccl_thread_ranks(0, {}, nullptr, [](Fabric&) {}), Error);
}

}  // namespace
}  // namespace distca
