#include "comm/threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/check.h"
#include "comm/fabric_suite.h"

namespace distca {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

/// The message of the error that the ranks end with.
std::string error_of(int32_t ranks, double timeout_s, const std::function<void(Fabric&)>& body) {
  try {
    run_thread_ranks(ranks, {.timeout_s = timeout_s}, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<ExchangePart> one_part(const void* send, void* recv, std::vector<PeerBytes> sends,
                                   std::vector<PeerBytes> receives) {
  return {{send, recv, std::move(sends), std::move(receives)}};
}

TEST(ThreadFabric, DoesWhatEveryFabricMust) {
  for (int32_t ranks : {1, 2, 3, 5, 8}) {
    const uint64_t seed = std::random_device()();
    SCOPED_TRACE(testing::Message() << ranks << " ranks, seed " << seed);
    run_thread_ranks(ranks, {}, [&](Fabric& fabric) {
      EXPECT_EQ(fabric.world_size(), ranks);
      EXPECT_EQ(fabric.kind(), "threads");
      suite::check_all(fabric, seed);
    });
  }
}

TEST(ThreadFabric, RunsEveryRankOnce) {
  std::vector<std::atomic<int>> calls(8);
  run_thread_ranks(8, {}, [&](Fabric& fabric) { ++calls[fabric.rank()]; });
  for (const auto& n : calls) EXPECT_EQ(n, 1);
  EXPECT_THROW(run_thread_ranks(0, {}, [](Fabric&) {}), Error);
}

TEST(ThreadFabric, BarrierHoldsUntilAllRanksAreThere) {
  std::atomic<int> arrived = 0;
  run_thread_ranks(8, {}, [&](Fabric& fabric) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      fabric.barrier("round");
      EXPECT_GE(arrived, 8 * round);
      fabric.barrier("next");
    }
  });
}

TEST(ThreadFabric, EveryRankNamesThePeerThatNeverAnswers) {
  std::vector<std::string> messages(4);
  std::atomic<int> ended = 0;
  const std::string first = error_of(4, 0.2, [&](Fabric& fabric) {
    int64_t value = 0;
    if (fabric.rank() == 2) {
      while (ended < 3) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    try {
      fabric.all_reduce(&value, 1, DType::kInt64, ReduceOp::kSum, "gradients of layer 3");
    } catch (const Error& error) {
      messages[fabric.rank()] = error.what();
      ++ended;
      throw;
    }
  });
  EXPECT_THAT(first, HasSubstr(" waited 0.2 s for rank 2 in gradients of layer 3"));
  for (int32_t rank : {0, 1, 3}) {
    EXPECT_THAT(messages[rank],
                AllOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr("for rank 2 in gradients")));
  }
}

TEST(ThreadFabric, ExpiredWaitNamesAllMissingPeersOfAnExchange) {
  std::atomic<int> ended = 0;
  const std::string message = error_of(5, 0.1, [&](Fabric& fabric) {
    if (fabric.rank() == 1 || fabric.rank() == 3) {
      while (ended < 1) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    std::vector<uint8_t> send(5), recv(5);
    std::vector<PeerBytes> all;
    if (fabric.rank() == 0) all = {{0, 0, 1}, {1, 1, 1}, {3, 3, 1}};
    const auto pending = fabric.all_to_all(one_part(send.data(), recv.data(), all, all), "dispatch layer 3");
    if (fabric.rank() == 0) {
      ++ended;
      pending->wait();
    }
  });
  EXPECT_EQ(message, "rank 0 waited 0.1 s for ranks 1 and 3 in dispatch layer 3");
}

/// Rank 0 waits 0.3 s for rank 1, which waits for rank 2; `late` of the two begins a little later. Rank 1
/// says that its time is up only once that of rank 0 is.
std::string message_of_a_chain(int32_t late) {
  std::atomic<bool> ended = false;
  return error_of(3, 0.3, [&](Fabric& fabric) {
    char byte = 0;
    if (fabric.rank() == 2) {
      while (!ended) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    if (fabric.rank() == late) std::this_thread::sleep_for(milliseconds(100));
    try {
      fabric.receive(&byte, 1, fabric.rank() + 1, fabric.rank() == 0 ? "activations" : "gradients");
    } catch (...) {
      while (fabric.rank() == 1 && !ended) std::this_thread::sleep_for(milliseconds(5));
      ended = true;
      throw;
    }
  });
}

TEST(ThreadFabric, AnExpiredWaitForARankThatWaitsItselfNamesWhomThatOneWaitsFor) {
  EXPECT_EQ(message_of_a_chain(1),
            "rank 0 waited 0.3 s for rank 1 in activations, which waits for rank 2 in gradients");
}

TEST(ThreadFabric, AnExpiredWaitForARankWhoseOwnExpiredBeforeNamesWhomThatOneWaitedFor) {
  EXPECT_EQ(message_of_a_chain(0),
            "rank 0 waited 0.3 s for rank 1 in activations, which waited for rank 2 in gradients");
}

TEST(ThreadFabric, MessagesTimeOutOnBothSides) {
  for (bool sends : {true, false}) {
    std::atomic<bool> ended = false;
    const std::string message = error_of(2, 0.1, [&](Fabric& fabric) {
      char byte = 0;
      if (fabric.rank() == 1) {
        while (!ended) std::this_thread::sleep_for(milliseconds(5));
        return;
      }
      ended = true;
      sends ? fabric.send(&byte, 1, 1, "activations") : fabric.receive(&byte, 1, 1, "activations");
    });
    EXPECT_EQ(message, "rank 0 waited 0.1 s for rank 1 in activations");
  }
}

TEST(ThreadFabric, RankThatThrowsEndsAllWithItsMessage) {
  std::vector<std::string> messages(8);
  const auto start = std::chrono::steady_clock::now();
  const std::string first = error_of(8, 600, [&](Fabric& fabric) {
    fabric.barrier("start");
    try {
      if (fabric.rank() == 5) throw std::runtime_error("no more memory");
      fabric.barrier("step 1");
    } catch (const std::exception& error) {
      messages[fabric.rank()] = error.what();
      throw;
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_EQ(first, "rank 5: no more memory");
  for (int32_t rank : {0, 1, 2, 3, 4, 6, 7}) {
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("step 1"), HasSubstr("rank 5: no more memory")));
  }
}

TEST(ThreadFabric, WrongInputStaysWrongInput) {
  const auto body = [](Fabric& fabric) {
    if (fabric.rank() == 1) throw InputError("heads 3 and 2 don't divide");
    fabric.barrier("start");
  };
  EXPECT_THROW(run_thread_ranks(3, {}, body), InputError);
  EXPECT_EQ(error_of(3, 60, body), "rank 1: heads 3 and 2 don't divide");
  EXPECT_EQ(error_of(2, 60, [](Fabric&) { throw 7; }).substr(6), ": an exception that is no std::exception");
}

TEST(ThreadFabric, AbortEndsTheWaitsOfAllRanks) {
  std::atomic<int> stopped = 0;
  const std::string message = error_of(4, 600, [&](Fabric& fabric) {
    const auto part = fabric.split(fabric.rank() / 2, "halves");
    if (fabric.rank() == 3) return part->abort("the plan doesn't fit");
    EXPECT_THROW(
        {
          while (true) fabric.rank() < 2 ? part->barrier("tick") : fabric.barrier("step");
        },
        Error);
    ++stopped;
  });
  EXPECT_EQ(message, "rank 3: the plan doesn't fit");
  EXPECT_EQ(stopped, 3);
}

TEST(ThreadFabric, SplitFabricsNameRanksOfTheJob) {
  std::atomic<bool> ended = false;
  const std::string message = error_of(6, 0.1, [&](Fabric& fabric) {
    const auto part = fabric.split(fabric.rank() / 3, "stage");
    if (fabric.rank() == 3) {
      ended = true;
      char byte;
      part->receive(&byte, 1, 2, "gradient");
    }
    while (!ended) std::this_thread::sleep_for(milliseconds(5));
  });
  EXPECT_EQ(message, "rank 3 waited 0.1 s for rank 5 in gradient");
}

TEST(ThreadFabric, DifferentOperationsAreToldApart) {
  const std::string other_kind = error_of(2, 600, [](Fabric& fabric) {
    int64_t value = 0;
    if (fabric.rank() == 0) fabric.barrier("step 7");
    if (fabric.rank() == 1) fabric.all_reduce(&value, 1, DType::kInt64, ReduceOp::kMax, "loss");
  });
  EXPECT_THAT(other_kind, AllOf(HasSubstr("rank 0"), HasSubstr("barrier 'step 7'"), HasSubstr("rank 1"),
                                HasSubstr("all_reduce 'loss' of 1 int64 (max)")));
  const std::string other_size = error_of(2, 600, [](Fabric& fabric) {
    std::vector<char> data(10);
    fabric.broadcast(data.data(), 9 + fabric.rank(), 0, "plan");
  });
  EXPECT_THAT(other_size, AllOf(HasSubstr("'plan' of 9 bytes"), HasSubstr("'plan' of 10 bytes")));
  const std::string other_message = error_of(2, 600, [](Fabric& fabric) {
    std::vector<char> data(10);
    if (fabric.rank() == 0) fabric.send(data.data(), 4, 1, "half");
    if (fabric.rank() == 1) fabric.receive(data.data(), 5, 0, "half");
  });
  EXPECT_THAT(other_message, AllOf(HasSubstr("'half' of 4 bytes"), HasSubstr("'half' of 5 bytes")));
}

TEST(ThreadFabric, ExchangeWhoseSidesDisagreeSaysWhere) {
  const auto exchange = [](std::vector<PeerBytes> sends, std::vector<PeerBytes> receives) {
    return error_of(3, 600, [&](Fabric& fabric) {
      std::vector<uint8_t> send(16), recv(16);
      std::vector<ExchangePart> parts(2);
      parts[1] = {send.data(), recv.data(), {}, {}};
      if (fabric.rank() == 1) parts[1].sends = sends;
      if (fabric.rank() == 2) parts[1].receives = receives;
      fabric.all_to_all(parts, "collect layer 0")->wait();
    });
  };
  EXPECT_EQ(exchange({{2, 0, 8}}, {{1, 0, 9}}).substr(8),
            "part 1 of collect layer 0: rank 1 sends 8 bytes to rank 2, which expects 9");
  EXPECT_EQ(exchange({{2, 0, 8}}, {}).substr(8),
            "part 1 of collect layer 0: rank 1 sends 8 bytes to rank 2, which expects 0");
  EXPECT_EQ(exchange({}, {{1, 4, 9}}).substr(8),
            "part 1 of collect layer 0: rank 1 sends 0 bytes to rank 2, which expects 9");
  EXPECT_EQ(exchange({{2, 0, 8}, {2, 8, 1}}, {{1, 0, 8}}),
            "rank 1: part 1 of collect layer 0 lists rank 2 twice");
  EXPECT_EQ(exchange({{3, 0, 8}}, {}), "rank 1: part 1 of collect layer 0 lists rank 3 of 3");
  EXPECT_EQ(exchange({{2, 0, -8}}, {}),
            "rank 1: part 1 of collect layer 0 lists -8 bytes at offset 0 for rank 2");
}

TEST(ThreadFabric, DroppedExchangeIsGivenUpForAll) {
  for (bool drop_first : {true, false}) {
    std::atomic<int> step = 0;
    const std::string message = error_of(2, 600, [&](Fabric& fabric) {
      const uint8_t send = 1;
      uint8_t recv = 0;
      const bool drops = fabric.rank() == 1;
      const std::vector<PeerBytes> self = {{fabric.rank(), 0, 1}}, all = {{0, 0, 1}, {1, 0, 1}};
      while (drops != drop_first && step == 0) std::this_thread::sleep_for(milliseconds(1));
      fabric.all_to_all(one_part(&send, &recv, self, self), "own")->wait();
      auto pending = fabric.all_to_all(one_part(&send, &recv, all, all), "dispatch");
      if (drops) pending.reset();
      step = 1;
      if (!drops) pending->wait();
    });
    EXPECT_EQ(message, drop_first ? "rank 0 waited in dispatch for rank 1, which gave it up" : "no error");
  }
}

TEST(ThreadFabric, BuffersAreFreeOnceADroppedExchangeIsGone) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (int round = 0; round < 30; ++round) {
    const int32_t dropper = static_cast<int32_t>((seed + round) % 8);
    const std::string message = error_of(8, 60, [&](Fabric& fabric) {
      const suite::RandomExchange exchange(fabric.rank(), 8, seed + round);
      const auto pending = exchange.start(fabric);
      if (fabric.rank() == dropper) throw Error("dropped");
      pending->wait();
      exchange.check();
    });
    EXPECT_EQ(message, "rank " + std::to_string(dropper) + ": dropped");
  }
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

TEST(ThreadFabric, MessagesAndOffsetsBeyond2To31Bytes) {
  if (kThreadSanitizer) GTEST_SKIP() << "needs four times the memory under the thread sanitizer";
  run_thread_ranks(2, {}, [](Fabric& fabric) { suite::check_large_exchange(fabric); });
}

TEST(ThreadFabric, ManyExchangesFromManyRanks) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  run_thread_ranks(8, {}, [&](Fabric& fabric) { suite::check_exchanges(fabric, seed, 100); });
}

}  // namespace
}  // namespace distca
