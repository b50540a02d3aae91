// Ranks that go on without one that was lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "comm/testing.h"
#include "comm/threads.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Ranks from `first` on may be lost.
FabricOptions losing_from(int32_t first, double timeout_s = 60) {
  FabricOptions options{.timeout_s = timeout_s};
  options.can_lose = [first](const std::vector<int32_t>& lost) {
    return std::all_of(lost.begin(), lost.end(), [&](int32_t rank) { return rank >= first; });
  };
  return options;
}

std::string error_of(int32_t ranks, const FabricOptions& options, const std::function<void(Fabric&)>& body) {
  try {
    run_thread_ranks(ranks, options, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

double sum_of(Fabric& fabric, double value, const std::string& name) {
  fabric.all_reduce(std::span<double>(&value, 1), ReduceOp::kSum, name);
  return value;
}

TEST(LostRank, OthersAreToldAndGoOn) {
  run_thread_ranks(4, losing_from(2), [](Fabric& world) {
    if (world.rank() == 2) throw std::runtime_error("no more memory");
    try {
      world.barrier("step 7");
      ADD_FAILURE() << "a barrier without rank 2";
    } catch (const RankLost& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank " + std::to_string(world.rank()) + " stopped"),
                                      HasSubstr("step 7: rank 2: no more memory")));
      EXPECT_EQ(error.lost.rank, 2);
      EXPECT_EQ(error.lost.failure, "rank 2: no more memory");
    }
    EXPECT_THROW(world.barrier("before agreeing"), RankLost);
    const Survivors left = world.survivors("who is left");
    EXPECT_THAT(left.ranks, ElementsAre(0, 1, 3));
    ASSERT_EQ(left.lost.size(), 1U);
    EXPECT_EQ(left.fabric->world_size(), 3);
    EXPECT_EQ(left.fabric->rank(), world.rank() == 3 ? 2 : world.rank());
    EXPECT_EQ(sum_of(*left.fabric, world.rank() + 1, "sum"), 7);
    const auto part = left.fabric->split(left.fabric->rank() % 2, "parts");
    EXPECT_EQ(part->world_size(), left.fabric->rank() % 2 == 0 ? 2 : 1);
  });
}

TEST(LostRank, GroupsWithoutItEndToo) {
  run_thread_ranks(3, losing_from(2), [](Fabric& world) {
    const auto pair = world.split(world.rank() / 2, "pairs");
    if (world.rank() == 2) throw std::runtime_error("gone");
    char byte = 0;
    // Rank 0 never sends.
    if (world.rank() == 1) {
      EXPECT_THROW(pair->receive(&byte, 1, 0, "activations"), RankLost);
    }
    const Survivors left = world.survivors("who is left");
    EXPECT_EQ(sum_of(*left.fabric, 1, "sum"), 2);
  });
}

TEST(LostRank, AnExchangeGivenUpForItIsNotBlamedOnWhoGaveUp) {
  for (int round = 0; round < 50; ++round) {
    run_thread_ranks(4, losing_from(3), [](Fabric& world) {
      std::vector<char> send(8), recv(8);
      std::vector<ExchangePart> parts(1);
      parts[0] = {send.data(), recv.data(), {}, {}};
      for (int32_t peer = 0; peer < 4; ++peer) {
        parts[0].sends.push_back({peer, peer, 1});
        parts[0].receives.push_back({peer, peer + 4, 1});
      }
      if (world.rank() == 3) throw std::runtime_error("gone");
      std::unique_ptr<Pending> pending;
      try {
        pending = world.all_to_all(parts, "dispatch");
        pending->wait();
        ADD_FAILURE() << "an exchange without rank 3";
      } catch (const RankLost&) {
      }
      pending.reset();  // outside of the exception
      EXPECT_EQ(sum_of(*world.survivors("who is left").fabric, 1, "sum"), 3);
    });
  }
}

TEST(LostRank, TwoGoOneAfterTheOtherAndWhileTheRestAgree) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    const int64_t first = random() % 30, second = random() % 30;
    run_thread_ranks(6, losing_from(4), [&](Fabric& fabric) {
      int64_t operations = 0;
      const auto watched = testing::watched_fabric(fabric, [&](const std::string&) {
        const int64_t now = operations++;
        if (fabric.rank() == 4 && now == first) throw std::runtime_error("first");
        if (fabric.rank() == 5 && now == second) throw std::runtime_error("second");
      });
      // What is added to a counter that all had agreed on must be the same on all.
      Fabric* world = watched.get();
      std::unique_ptr<Fabric> left;
      int64_t steps = 0;
      while (steps < 20) {
        try {
          const double sum = sum_of(*world, 1, "step");
          EXPECT_GE(sum, 4);
          ++steps;
        } catch (const RankLost&) {
          for (bool agreed = false; !agreed;) {
            try {
              Survivors next = world->survivors("who is left");
              // A rank that has done its steps is gone: there is nothing more to add up with it.
              if (next.fabric == nullptr) return;
              double most = static_cast<double>(steps);
              next.fabric->all_reduce(std::span<double>(&most, 1), ReduceOp::kMax, "steps");
              EXPECT_LE(most - static_cast<double>(steps), 1);
              steps = static_cast<int64_t>(most);
              left = std::move(next.fabric);
              world = left.get();
              agreed = true;
            } catch (const RankLost&) {
            }
          }
        }
      }
    });
  }
}

TEST(LostRank, OneThatCannotBeSparedEndsTheJobWithItsMessage) {
  const auto dies = [](int32_t who) {
    return [who](Fabric& world) {
      if (world.rank() == who) throw std::runtime_error("no more memory");
      world.barrier("start");
    };
  };
  EXPECT_EQ(error_of(3, losing_from(2), dies(1)), "rank 1: no more memory");
  // Nobody goes on without it.
  EXPECT_EQ(error_of(3, losing_from(2), dies(2)), "rank 2: no more memory");
  EXPECT_EQ(error_of(3, {}, dies(2)), "rank 2: no more memory");
}

TEST(LostRank, WaitingInVainOrWrongInputIsNoLoss) {
  std::atomic<bool> ended = false;
  const std::string message = error_of(3, losing_from(1, 0.1), [&](Fabric& world) {
    if (world.rank() != 2) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (world.rank() == 1) world.barrier("step 1");
      return;
    }
    ended = true;
    world.barrier("step 1");
  });
  EXPECT_THAT(message, AllOf(HasSubstr("waited 0.1 s for"), HasSubstr("in step 1")));
  EXPECT_EQ(error_of(2, losing_from(0),
                     [](Fabric& world) {
                       if (world.rank() == 1) throw InputError("heads 3 and 2 don't divide");
                       world.barrier("start");
                     }),
            "rank 1: heads 3 and 2 don't divide");
}

TEST(LostRank, AgreeingHasATimeoutThatNamesWhoDoesNotCome) {
  std::atomic<bool> ended = false;
  const std::string message = error_of(4, losing_from(3, 0.2), [&](Fabric& world) {
    if (world.rank() == 3) throw std::runtime_error("gone");
    if (world.rank() == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    EXPECT_THROW(world.barrier("step 1"), RankLost);
    try {
      world.survivors("who is left");
    } catch (...) {
      ended = true;
      throw;
    }
  });
  EXPECT_THAT(message, HasSubstr(" waited 0.2 s for rank 1 in who is left"));
}

TEST(LostRank, OneThatHasEndedLeavesNothingToDoTogether) {
  std::atomic<bool> gone = false;
  run_thread_ranks(3, losing_from(2), [&](Fabric& world) {
    if (world.rank() == 0) return;
    if (world.rank() == 2) {
      while (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw std::runtime_error("gone");
    }
    gone = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(world.survivors("who is left").fabric, nullptr);
  });
}

TEST(LostRank, ClocksGoOnWithoutIt) {
  FabricOptions options = losing_from(3);
  options.link.clock = LinkOptions::Clock::kVirtual;
  options.link.latency = 1e-3;
  options.link.bandwidth = 1e9;
  options.link.cores = 2;
  run_thread_ranks(4, options, [](Fabric& world) {
    EXPECT_EQ(sum_of(world, 1, "before"), 4);
    if (world.rank() == 3) throw std::runtime_error("gone");
    const double before = world.now();
    EXPECT_THROW(sum_of(world, 1, "with rank 3"), RankLost);
    const Survivors left = world.survivors("who is left");
    for (int i = 0; i < 10; ++i) EXPECT_EQ(sum_of(*left.fabric, 1, "after"), 3);
    EXPECT_GE(left.fabric->now() - before, 10e-3);
  });
}

}  // namespace
}  // namespace distca
