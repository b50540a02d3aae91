#include "comm/rank_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "comm/fabric_suite.h"
#include "comm/threads.h"

namespace distca {
namespace {

FabricOptions virtual_links(double latency, double bandwidth) {
  FabricOptions options;
  options.link.clock = LinkOptions::Clock::kVirtual;
  options.link.latency = latency;
  options.link.bandwidth = bandwidth;
  return options;
}

/// Uses `seconds` of CPU time.
void compute(double seconds) {
  const double end = thread_cpu_seconds() + seconds;
  while (thread_cpu_seconds() < end) continue;
}

/// What a rank's own loops and calls add to closed forms, at most: links here take seconds.
constexpr double kOwn = 0.05;

/// An exchange in which this rank sends `sends` and gets `receives` bytes from and to every other.
std::unique_ptr<Pending> start_all_to_all(Fabric& fabric, std::vector<char>& send, std::vector<char>& recv,
                                          int64_t bytes) {
  send.resize(bytes);
  recv.resize(bytes * fabric.world_size());
  ExchangePart part{send.data(), recv.data(), {}, {}};
  for (int32_t peer = 0; peer < fabric.world_size(); ++peer) {
    if (peer == fabric.rank()) continue;
    part.sends.push_back({peer, 0, bytes});
    part.receives.push_back({peer, peer * bytes, bytes});
  }
  return fabric.all_to_all({part}, "exchange");
}

TEST(RankClocks, GiveACoreToTheRankFurthestBehind) {
  RankClocks clocks(4, 1);
  clocks.raise(1, 3);
  clocks.raise(2, 1);
  clocks.raise(3, 2);
  EXPECT_TRUE(clocks.has_core(0));
  for (int32_t rank : {1, 2, 3}) EXPECT_FALSE(clocks.has_core(rank));
  EXPECT_EQ(clocks.give_core(0), 2);
  EXPECT_EQ(clocks.give_core(0), -1);
  EXPECT_EQ(clocks.give_core(2), 3);
  EXPECT_EQ(clocks.give_core(3), 1);
  EXPECT_EQ(clocks.give_core(1), -1);
  EXPECT_TRUE(clocks.has_core(2));
}

TEST(RankClocks, ASlowRankTakesLongerForTheSameCpuTime) {
  std::vector<double> took(2), used(2);
  run_thread_ranks(2, virtual_links(0, 0), {1, 0.25}, [&](Fabric& fabric) {
    const double begin = fabric.now(), cpu = thread_cpu_seconds();
    compute(0.02);
    took[fabric.rank()] = fabric.now() - begin;
    used[fabric.rank()] = thread_cpu_seconds() - cpu;
  });
  EXPECT_NEAR(took[0], used[0], 0.005);
  EXPECT_NEAR(took[1], 4 * used[1], 0.02);
}

TEST(RankClocks, SpeedsThatDoNotFitAreWrongInput) {
  const auto run = [](const std::vector<double>& speeds, bool on_virtual_clock) {
    FabricOptions options;
    if (on_virtual_clock) options = virtual_links(0, 0);
    run_thread_ranks(2, options, speeds, [](Fabric&) {});
  };
  EXPECT_NO_THROW(run({1, 2}, true));
  EXPECT_THROW(run({1, 2}, false), InputError);
  EXPECT_THROW(run({1, 2, 3}, true), InputError);
  EXPECT_THROW(run({1, 0}, true), InputError);
}

TEST(RankClocks, LeastIsOfThoseThatHaveNotEnded) {
  RankClocks clocks(3, 2);
  for (int32_t rank = 0; rank < 3; ++rank) clocks.raise(rank, 1.0 + rank);
  clocks.raise(2, 2);
  EXPECT_EQ(clocks.least(), 1);
  clocks.end(0);
  EXPECT_EQ(clocks.least(), 2);
}

TEST(VirtualClock, DoesWhatEveryFabricMust) {
  for (int32_t ranks : {1, 2, 3, 5, 8}) {
    const uint64_t seed = std::random_device()();
    SCOPED_TRACE(testing::Message() << ranks << " ranks, seed " << seed);
    // Transfers that take no longer than a few questions whether they are over.
    FabricOptions options = virtual_links(1e-5, 1e10);
    options.link.node_bandwidth = 1e9;
    options.link.ranks_per_node = 3;
    options.link.cores = 1 + static_cast<int32_t>(seed % 3);
    run_thread_ranks(ranks, options, [&](Fabric& fabric) { suite::check_all(fabric, seed); });
  }
}

TEST(VirtualClock, GoesByCpuTimeNotByWallTime) {
  run_thread_ranks(2, virtual_links(0, 0), [](Fabric& fabric) {
    const double begin = fabric.now(), wall = wall_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_GE(wall_seconds() - wall, 0.2);
    EXPECT_LT(fabric.now() - begin, 0.1);
    const double slept = fabric.now();
    compute(0.1);
    EXPECT_GE(fabric.now() - slept, 0.1);
    EXPECT_LT(fabric.now() - slept, 0.2);
  });
}

TEST(VirtualClock, AWaitMovesItToTheArrival) {
  run_thread_ranks(2, virtual_links(2, 1e3), [](Fabric& fabric) {
    std::vector<char> send, recv;
    const double begin = fabric.now(), wall = wall_seconds();
    const auto pending = start_all_to_all(fabric, send, recv, 5000);
    EXPECT_FALSE(pending->done());
    pending->wait();
    EXPECT_TRUE(pending->done());
    EXPECT_NEAR(fabric.now() - begin, 7, kOwn);
    EXPECT_LT(wall_seconds() - wall, 5);
  });
}

TEST(VirtualClock, ARankThatComputesLongerThanTheTransferWaitsForNothing) {
  run_thread_ranks(2, virtual_links(0.05, 1e5), [](Fabric& fabric) {
    std::vector<char> send, recv;
    fabric.barrier("begin");
    const auto pending = start_all_to_all(fabric, send, recv, 5000);  // 0.1 s
    compute(0.3);
    const double asked = fabric.now();
    pending->wait();
    EXPECT_LT(fabric.now() - asked, 0.01);
    EXPECT_NEAR(asked - pending->end().time, 0.2, kOwn);
    EXPECT_EQ(pending->end().peer, 1 - fabric.rank());
  });
}

TEST(VirtualClock, CollectivesTakeTheirMessages) {
  constexpr double kLatency = 1, kBandwidth = 1000;
  for (int32_t ranks : {2, 3, 8}) {
    run_thread_ranks(ranks, virtual_links(kLatency, kBandwidth), [&](Fabric& fabric) {
      const int64_t others = ranks - 1, count = 240;
      std::vector<double> data(count * ranks, 1.0), out(count * ranks);
      const auto seconds_of = [&](const std::function<void()>& call) {
        const double begin = fabric.now();
        call();
        return fabric.now() - begin;
      };
      const auto line_up = [&] { fabric.barrier("line up"); };
      const double slices = kLatency + static_cast<double>(others * (count / ranks) * 8) / kBandwidth;
      line_up();
      EXPECT_NEAR(seconds_of([&] {
                    fabric.all_reduce(std::span<double>(data.data(), count), ReduceOp::kSum, "sum");
                  }),
                  2 * slices, kOwn)
          << ranks << " ranks";
      line_up();
      EXPECT_NEAR(seconds_of([&] { fabric.all_gather(data.data(), out.data(), 800, "gather"); }),
                  kLatency + 0.8 * static_cast<double>(others), kOwn);
      line_up();
      EXPECT_NEAR(seconds_of([&] {
                    fabric.reduce_scatter(data.data(), out.data(), count, DType::kFloat64, "scatter");
                  }),
                  kLatency + static_cast<double>(others * count * 8) / kBandwidth, kOwn);
      line_up();
      // The root's messages leave one after the other, to the next rank first.
      const auto after = static_cast<double>(fabric.rank() == 0 ? others : fabric.rank());
      EXPECT_NEAR(seconds_of([&] { fabric.broadcast(data.data(), 500, 0, "broadcast"); }),
                  0.5 * after + (fabric.rank() == 0 ? 0 : kLatency), kOwn);
      EXPECT_LT(seconds_of([&] { fabric.split(0, "split"); }), kOwn);
    });
  }
}

TEST(VirtualClock, ABarrierEndsALatencyAfterTheLastOfTheOthersCame) {
  run_thread_ranks(4, virtual_links(1, 0), [](Fabric& fabric) {
    fabric.barrier("line up");
    const double begin = fabric.now();
    if (fabric.rank() == 2) compute(0.4);
    fabric.barrier("barrier");
    EXPECT_NEAR(fabric.now() - begin, fabric.rank() == 2 ? 1 : 1.4, kOwn);
  });
}

TEST(VirtualClock, ASenderLeavesWhenItsMessageHas) {
  run_thread_ranks(2, virtual_links(3, 1000), [](Fabric& fabric) {
    std::vector<char> data(2000);
    fabric.barrier("line up");
    const double begin = fabric.now();
    if (fabric.rank() == 0) fabric.send(data.data(), 2000, 1, "stage");
    if (fabric.rank() == 1) fabric.receive(data.data(), 2000, 0, "stage");
    EXPECT_NEAR(fabric.now() - begin, fabric.rank() == 0 ? 2 : 5, kOwn);
  });
}

TEST(VirtualClock, WhatComesDoesNotWaitForWhatGoes) {
  run_thread_ranks(2, virtual_links(1, 100), [&](Fabric& fabric) {
    // 1 takes 100 bytes to 0, 0 takes 1000 to 1.
    std::vector<char> send(1000), recv(1000);
    const int64_t out = fabric.rank() == 0 ? 1000 : 100, in = 1100 - out;
    const int32_t peer = 1 - fabric.rank();
    const auto pending =
        fabric.all_to_all({{send.data(), recv.data(), {{peer, 0, out}}, {{peer, 0, in}}}}, "uneven");
    pending->wait_arrived();
    const double came = static_cast<double>(in) / 100 + 1;
    EXPECT_NEAR(fabric.now(), came, kOwn);
    EXPECT_NEAR(pending->arrival().time, came, kOwn);
    pending->wait();
    EXPECT_NEAR(fabric.now(), fabric.rank() == 0 ? 10 : came, kOwn);
  });
}

TEST(VirtualClock, GroupsShareTheClockAndTheLinks) {
  run_thread_ranks(4, virtual_links(0, 1000), [](Fabric& fabric) {
    const auto half = fabric.split(fabric.rank() / 2, "half");
    std::vector<char> send, recv, send_half, recv_half;
    fabric.barrier("line up");
    const double begin = fabric.now();
    const auto first = start_all_to_all(fabric, send, recv, 1000);
    const auto second = start_all_to_all(*half, send_half, recv_half, 1000);
    first->wait();
    second->wait();
    EXPECT_NEAR(half->now() - begin, 4, kOwn);  // three messages, then one
  });
}

TEST(VirtualClock, NoMoreRanksComputeAtOnceThanThereAreCores) {
  for (int32_t cores : {1, 2, 3}) {
    std::atomic<int32_t> computing = 0, most = 0;
    FabricOptions options = virtual_links(1e-6, 1e9);
    options.link.cores = cores;
    run_thread_ranks(8, options, [&](Fabric& fabric) {
      for (int round = 0; round < 20; ++round) {
        const int32_t now = ++computing;
        for (int32_t before = most; before < now && !most.compare_exchange_weak(before, now);) continue;
        compute(1e-3);
        --computing;
        fabric.barrier("round");
      }
    });
    EXPECT_LE(most, cores);
    EXPECT_GE(most, 1);
  }
}

TEST(VirtualClock, AFailedRankEndsThoseThatWaitForACore) {
  FabricOptions options = virtual_links(1e-6, 1e9);
  options.link.cores = 1;
  try {
    run_thread_ranks(6, options, [](Fabric& fabric) {
      fabric.barrier("begin");
      if (fabric.rank() == 3) throw Error("no more memory");
      while (true) fabric.barrier("step");
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 3: no more memory");
  }
}

TEST(VirtualClock, TimeoutsAreWallTime) {
  FabricOptions options = virtual_links(1000, 0);
  options.timeout_s = 0.2;
  std::atomic<bool> ended = false;
  try {
    run_thread_ranks(2, options, [&](Fabric& fabric) {
      fabric.barrier("begin");  // 1000 s on the clock
      if (fabric.rank() == 1) {
        while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      try {
        fabric.barrier("step");
      } catch (...) {
        ended = true;
        throw;
      }
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 0 waited 0.2 s for rank 1 in step");
  }
}

TEST(WallLinks, DoWhatEveryFabricMust) {
  for (int32_t ranks : {2, 5}) {
    const uint64_t seed = std::random_device()();
    SCOPED_TRACE(testing::Message() << ranks << " ranks, seed " << seed);
    FabricOptions options;
    options.link.latency = 1e-4;
    options.link.bandwidth = 1e9;
    run_thread_ranks(ranks, options, [&](Fabric& fabric) { suite::check_all(fabric, seed); });
  }
}

TEST(WallLinks, WaitsTakeWallTimeWithoutACore) {
  FabricOptions options;
  options.link.latency = 0.1;
  options.link.bandwidth = 1e4;
  const double begin = wall_seconds();
  run_thread_ranks(2, options, [&](Fabric& fabric) {
    std::vector<char> send, recv;
    const double cpu = thread_cpu_seconds();
    const auto pending = start_all_to_all(fabric, send, recv, 2000);
    pending->wait();
    EXPECT_TRUE(pending->done());
    EXPECT_GE(fabric.now() - begin, 0.3);
    EXPECT_LT(thread_cpu_seconds() - cpu, 0.1);
    const auto second = start_all_to_all(fabric, send, recv, 2000);
    EXPECT_FALSE(second->done());
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    EXPECT_TRUE(second->done());
    second->wait();
  });
}

TEST(WallLinks, AbortAndTimeoutEndWaitsForATransfer) {
  for (bool abort : {true, false}) {
    FabricOptions options;
    options.link.latency = 500;
    options.timeout_s = abort ? 600 : 0.2;
    try {
      run_thread_ranks(2, options, [&](Fabric& fabric) {
        std::vector<char> send, recv;
        const auto pending = start_all_to_all(fabric, send, recv, 10);
        if (fabric.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(abort ? 50 : 1000));
          if (abort) fabric.abort("the plan doesn't fit");
        } else {
          pending->wait();
        }
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   abort ? "rank 1: the plan doesn't fit" : "rank 0 waited 0.2 s for rank 1 in exchange");
    }
  }
}

}  // namespace
}  // namespace distca
