#include "comm/nccl_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "comm/fabric_suite.h"
#include "comm/nccl_threads.h"

namespace distca {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::NcclFaults;
using ::testing::StartsWith;

constexpr NcclOptions kOptions = {.timeout_s = .3, .grace_s = .5, .check_calls = false};
constexpr double kSlack = 2.5;  // beyond timeout and grace

/// The store as a rank sees it whose process may die.
class CutStore : public Store {
 public:
  explicit CutStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}
  void set(const std::string& key, const std::string& value) override {
    if (!cut) inner_->set(key, value);
  }
  std::optional<std::string> get(const std::string& key, double timeout_s) override {
    return cut ? std::nullopt : inner_->get(key, timeout_s);
  }
  int64_t add(const std::string& key, int64_t value) override { return cut ? 0 : inner_->add(key, value); }

  std::atomic<bool> cut = false;

 private:
  std::shared_ptr<Store> inner_;
};

struct Job {
  std::shared_ptr<CpuDevice> device = std::make_shared<CpuDevice>(CpuDevice::Memory::kHost);
  std::vector<std::shared_ptr<CutStore>> stores;
  std::vector<NcclJob> jobs;

  Job(int32_t ranks, NcclFaults faults, NcclOptions options = kOptions) {
    const auto library = testing::make_faulty_nccl(make_nccl_for_threads(device), device, std::move(faults));
    const auto store = std::make_shared<MemoryStore>();
    for (int32_t rank = 0; rank < ranks; ++rank) {
      stores.push_back(std::make_shared<CutStore>(store));
      jobs.push_back({device, library, stores.back(), rank, ranks, options});
    }
  }
};

/// What each rank threw, and when.
struct Outcome {
  std::vector<std::string> messages;
  std::vector<double> seconds;
};

/// How many ranks have ended, for those that stay away until the others have.
struct Ended {
  std::atomic<int> count = 0;
  void wait_for(int ranks) const {
    while (count < ranks) std::this_thread::sleep_for(milliseconds(2));
  }
};

Outcome run(const Job& job, Ended& ended, const std::function<void(Fabric&)>& body) {
  Outcome out{std::vector<std::string>(job.jobs.size(), "no error"), std::vector<double>(job.jobs.size())};
  std::vector<std::thread> threads;
  const double begun = wall_seconds();
  for (const NcclJob& rank : job.jobs) {
    threads.emplace_back([&] {
      std::unique_ptr<Fabric> fabric;
      try {
        fabric = make_nccl_fabric(rank);
        body(*fabric);
      } catch (const PeerError& error) {
        out.messages[rank.rank] = error.what();
      } catch (const std::exception& error) {
        out.messages[rank.rank] = "itself: " + std::string(error.what());
        if (fabric) fabric->abort(error.what());
      }
      out.seconds[rank.rank] = wall_seconds() - begun;
      ++ended.count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

/// Ranks 0 and 1 of three end in time, and say that they waited for rank 2 in "it".
void expect_named(const Outcome& out) {
  for (int32_t rank : {0, 1}) {
    EXPECT_THAT(out.messages[rank], AllOf(StartsWith("rank " + std::to_string(rank)), HasSubstr("waited 0."),
                                          HasSubstr("for rank 2 in it")));
    EXPECT_LT(out.seconds[rank], kOptions.timeout_s + kOptions.grace_s + kSlack);
  }
}

/// The real one's calls return before the others have called; it is the stream that waits.
NcclFaults on_the_stream(double seconds = 0) {
  NcclFaults faults;
  faults.launch = [seconds](int32_t rank) { return rank == 1 ? seconds : 0; };
  return faults;
}

std::unique_ptr<Pending> exchange_bytes(Fabric& fabric, const char* send, char* recv,
                                        const std::string& name = "it") {
  std::vector<PeerBytes> all;
  for (int32_t peer = 0; peer < fabric.world_size(); ++peer) all.push_back({peer, peer, 1});
  return fabric.all_to_all({{send, recv, all, all}}, name);
}

double sum(Fabric& fabric, double x, const std::string& name = "it") {
  fabric.all_reduce(std::span<double>(&x, 1), ReduceOp::kSum, name);
  return x;
}

TEST(NcclFaults, EveryCallNamesTheRankThatNeverComes) {
  std::vector<std::pair<std::string, std::function<void(Fabric&)>>> calls;
  calls.emplace_back("all_to_all", [](Fabric& fabric) {
    std::vector<char> send(3), recv(3);
    exchange_bytes(fabric, send.data(), recv.data())->wait();
  });
  calls.emplace_back("all_reduce", [](Fabric& fabric) { sum(fabric, 1); });
  calls.emplace_back("reduce_scatter", [](Fabric& fabric) {
    std::vector<double> x(3);
    double out = 0;
    fabric.reduce_scatter(x.data(), &out, 1, DType::kFloat64, "it");
  });
  calls.emplace_back("all_gather", [](Fabric& fabric) {
    std::vector<char> out(3);
    fabric.all_gather("x", out.data(), 1, "it");
  });
  calls.emplace_back("broadcast", [](Fabric& fabric) {
    char x = 0;
    fabric.broadcast(&x, 1, 2, "it");
  });
  calls.emplace_back("barrier", [](Fabric& fabric) { fabric.barrier("it"); });
  calls.emplace_back("split", [](Fabric& fabric) { fabric.split(0, "it"); });
  calls.emplace_back("message", [](Fabric& fabric) {
    char x = 0;
    fabric.rank() == 0 ? fabric.send(&x, 1, 2, "it") : fabric.receive(&x, 1, 2, "it");
  });
  for (const auto& [what, call] : calls) {
    for (const bool streams : {false, true}) {
      SCOPED_TRACE(what + (streams ? " on the stream" : ""));
      Ended ended;
      expect_named(run(Job(3, streams ? on_the_stream() : NcclFaults{}), ended,
                       [&](Fabric& fabric) { fabric.rank() == 2 ? ended.wait_for(2) : call(fabric); }));
    }
  }
}

TEST(NcclFaults, ARankThatHangsInsideACallIsNamed) {
  for (const std::string function : {"comm_init_rank", "comm_split", "all_reduce", "group_end"}) {
    SCOPED_TRACE(function);
    Ended ended;
    NcclFaults faults;
    faults.before = [&](int32_t rank, const std::string& called) {
      if (rank == 2 && called == function) ended.wait_for(2);
      return NcclResult::kSuccess;
    };
    const Outcome out = run(Job(3, faults), ended, [&](Fabric& fabric) {
      const std::unique_ptr<Fabric> all = fabric.split(0, "it");
      all->barrier("it");
      std::vector<char> send(3), recv(3);
      exchange_bytes(*all, send.data(), recv.data())->wait();
    });
    for (int32_t rank : {0, 1}) {
      EXPECT_THAT(out.messages[rank], AllOf(HasSubstr(" waited 0."), HasSubstr("rank 2"),
                                            HasSubstr(function == "comm_init_rank" ? "the start" : "it")));
      EXPECT_LT(out.seconds[rank], kOptions.timeout_s + kOptions.grace_s + kSlack);
    }
    EXPECT_THAT(out.messages[2], HasSubstr("rank 2 stopped waiting for ranks 0 and 1 in "));
  }
}

TEST(NcclFaults, ALateAnswerWithinTheTimeoutIsNone) {
  Ended ended;
  NcclOptions options = kOptions;
  options.timeout_s = 20;
  const Outcome out = run(Job(3, on_the_stream(.02), options), ended, [&](Fabric& fabric) {
    suite::check_exchanges(fabric, 7, 3);
    EXPECT_EQ(sum(fabric, fabric.rank()), 3);
  });
  EXPECT_THAT(out.messages, Each("no error"));
}

TEST(NcclFaults, ADeviceThatDoesNotMoveEndsAll) {
  for (const double seconds : {-1.0, 1.0}) {
    Ended ended;
    const Outcome out = run(Job(3, on_the_stream(seconds)), ended, [&](Fabric& fabric) { sum(fabric, 1); });
    for (int32_t rank : {0, 1, 2}) {
      EXPECT_THAT(out.messages[rank], AllOf(HasSubstr(" waited 0."), HasSubstr(" in it")));
      EXPECT_LT(out.seconds[rank], kOptions.timeout_s + kOptions.grace_s + kSlack);
    }
  }
}

TEST(NcclFaults, APeerThatDiesIsNamed) {
  Ended ended;
  std::atomic<bool> dead = false;
  NcclFaults faults = on_the_stream();
  faults.report = [&](int32_t rank) {
    return dead && rank != 2 ? NcclResult::kRemoteError : NcclResult::kSuccess;
  };
  const Job job(3, faults, {.timeout_s = 600, .grace_s = .5});
  const Outcome out = run(job, ended, [&](Fabric& fabric) {
    EXPECT_EQ(sum(fabric, 1), 3);
    if (fabric.rank() != 2) {
      sum(fabric, 1, "gradients of layer 3");
    } else {
      job.stores[2]->cut = true;
      dead = true;
      ended.wait_for(2);
    }
  });
  for (int32_t rank : {0, 1}) {
    EXPECT_THAT(out.messages[rank],
                AllOf(HasSubstr(" lost rank 2 in gradients of layer 3: NCCL reports 'remote process exited"),
                      EndsWith("which doesn't answer")));
    EXPECT_LT(out.seconds[rank], .5 + kSlack);
  }
}

TEST(NcclFaults, ErrorsThatNcclReturnsEndAll) {
  for (const std::string function : {"get_unique_id", "comm_init_rank", "comm_split", "group_end", "send"}) {
    for (const NcclResult result : {NcclResult::kSystemError, NcclResult::kInvalidUsage}) {
      SCOPED_TRACE(function + ": " + nccl_text(result));
      Ended ended;
      NcclFaults faults;
      const int32_t failing = function == "get_unique_id" ? 0 : 1;
      faults.before = [&](int32_t rank, const std::string& called) {
        return rank == failing && called == function ? result : NcclResult::kSuccess;
      };
      const NcclOptions options = {.timeout_s = 20, .grace_s = .4, .check_calls = false};
      const Outcome out = run(Job(3, faults, options), ended, [&](Fabric& fabric) {
        const std::unique_ptr<Fabric> all = fabric.split(0, "halves");
        std::vector<char> send(3), recv(3);
        exchange_bytes(*all, send.data(), recv.data())->wait();
        sum(fabric, 1, "the end");
      });
      for (int32_t rank : {0, 1, 2}) {
        EXPECT_THAT(out.messages[rank], HasSubstr("NCCL reports '" + nccl_text(result)));
        if (rank != failing) {
          EXPECT_THAT(out.messages[rank], HasSubstr("rank " + std::to_string(failing)));
        }
        EXPECT_LT(out.seconds[rank], 2 * options.grace_s + kSlack);
      }
    }
  }
}

TEST(NcclFaults, CommunicatorsThatDoNotEndHoldNobodyUp) {
  Ended ended;
  NcclFaults faults = on_the_stream();
  faults.before = [&](int32_t, const std::string& called) {
    if (called == "abort") std::this_thread::sleep_for(milliseconds(1500));
    return NcclResult::kSuccess;
  };
  double longest = 0;
  std::mutex mutex;
  run(Job(2, faults), ended, [&](Fabric& fabric) {
    if (fabric.rank() == 1) return ended.wait_for(1);
    const double begun = wall_seconds();
    EXPECT_THROW(sum(fabric, 1), PeerError);
    const std::lock_guard lock(mutex);
    longest = std::max(longest, wall_seconds() - begun);
  });
  EXPECT_LT(longest, kOptions.timeout_s + kOptions.grace_s + 1.4);
}

}  // namespace
}  // namespace distca
