#include "comm/link_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/check.h"

namespace distca {
namespace {

constexpr int64_t kMega = 1'000'000;

LinkOptions link(double latency, double bandwidth) {
  LinkOptions options;
  options.latency = latency;
  options.bandwidth = bandwidth;
  return options;
}

TEST(BusyTimes, TakesWhatIsFreeInPieces) {
  BusyTimes busy;
  const auto take = [&](double from, double seconds) {
    const BusyTimes::Use use = busy.take(from, seconds);
    return std::make_pair(use.begin, use.end);
  };
  EXPECT_EQ(take(2, 2), std::make_pair(2.0, 4.0));
  EXPECT_EQ(take(6, 1), std::make_pair(6.0, 7.0));
  EXPECT_EQ(take(1, 4), std::make_pair(1.0, 8.0));  // 1–2, 4–6 and 7–8
  EXPECT_EQ(take(5, 1), std::make_pair(8.0, 9.0));
  EXPECT_EQ(take(0, 1), std::make_pair(0.0, 1.0));
  busy.forget(9.5);
  EXPECT_EQ(take(9.5, 1), std::make_pair(9.5, 10.5));
}

TEST(LinkModel, AMessageTakesLatencyAndItsBytes) {
  LinkModel links(link(0.5, 1e6), 2);
  const auto message = links.post(0, 1, 2 * kMega, 3);
  links.decide(*message);
  EXPECT_DOUBLE_EQ(message->left, 5);
  EXPECT_DOUBLE_EQ(message->arrived, 5.5);
  const auto empty = links.post(0, 1, 0, 3), own = links.post(1, 1, kMega, 3);
  EXPECT_DOUBLE_EQ(empty->arrived, 3.5);
  EXPECT_DOUBLE_EQ(own->arrived, 3);
}

TEST(LinkModel, UnlimitedBandwidthLeavesTheLatency) {
  LinkModel links(link(0.5, 0), 2);
  EXPECT_DOUBLE_EQ(links.post(0, 1, int64_t{1} << 50, 1)->arrived, 1.5);
  EXPECT_FALSE(LinkModel::costs_time(LinkOptions{}));
  EXPECT_TRUE(LinkModel::costs_time(link(0.5, 0)));
  EXPECT_THROW(LinkModel(link(-1, 0), 2), InputError);
}

TEST(LinkModel, SendersQueueAtTheirReceiverInOrderOfSendTimes) {
  constexpr int32_t kSenders = 5;
  LinkModel links(link(0.25, 1e6), kSenders + 1);
  std::vector<std::shared_ptr<Transfer>> messages(kSenders);
  for (int32_t i : {3, 0, 4, 1, 2}) messages[i] = links.post(i, kSenders, kMega, 1 + 0.1 * i);
  for (const auto& message : messages) links.decide(*message);
  for (int32_t i = 0; i < kSenders; ++i) {
    EXPECT_DOUBLE_EQ(messages[i]->left, 2 + 0.1 * i);
    EXPECT_NEAR(messages[i]->arrived, 2.25 + i, 1e-12);
  }
}

TEST(LinkModel, MessagesOfASenderLeaveOneAfterTheOther) {
  LinkModel links(link(0.25, 1e6), 4);
  const auto a = links.post(0, 1, kMega, 0), b = links.post(0, 2, 2 * kMega, 0),
             c = links.post(0, 1, kMega, 0);
  links.decide(*c);
  EXPECT_DOUBLE_EQ(a->arrived, 1.25);
  EXPECT_DOUBLE_EQ(c->left, 4);
  EXPECT_DOUBLE_EQ(c->arrived, 4.25);
  links.decide(*b);
  EXPECT_DOUBLE_EQ(b->arrived, 3.25);
}

TEST(LinkModel, AnEvenAllToAllTakesNoLongerThanOnePort) {
  constexpr int32_t kRanks = 7;
  LinkModel links(link(0, 1e6), kRanks);
  std::vector<std::shared_ptr<Transfer>> all;
  for (int32_t step = 1; step < kRanks; ++step) {
    for (int32_t rank = 0; rank < kRanks; ++rank)
      all.push_back(links.post(rank, (rank + step) % kRanks, kMega, 0));
  }
  double end = 0;
  for (const auto& message : all) {
    links.decide(*message);
    end = std::max(end, message->arrived);
  }
  EXPECT_NEAR(end, kRanks - 1, 1e-9);
}

TEST(LinkModel, RanksOfANodeShareItsPorts) {
  LinkOptions options = link(0.5, 1e6);
  options.node_latency = 2;
  options.node_bandwidth = 4e6;
  options.ranks_per_node = 2;
  LinkModel links(options, 5);  // nodes {0, 1}, {2, 3}, {4}
  const auto inside = links.post(0, 1, 4 * kMega, 0);
  const auto a = links.post(0, 2, 4 * kMega, 0), b = links.post(1, 4, 4 * kMega, 0),
             c = links.post(4, 3, 4 * kMega, 0);
  for (const auto& message : {inside, a, b, c}) links.decide(*message);
  EXPECT_DOUBLE_EQ(inside->arrived, 4.5);
  EXPECT_DOUBLE_EQ(a->arrived, 3);  // alone at its node's port
  EXPECT_DOUBLE_EQ(b->arrived, 4);  // leaves the same node after it
  EXPECT_DOUBLE_EQ(c->arrived, 4);  // comes into the same node after it
}

TEST(LinkModel, AMessagePostedTooLateTakesWhatIsFree) {
  LinkModel links(link(0, 1e6), 3);
  const auto later = links.post(1, 0, kMega, 5);
  links.decide(*later);
  const auto earlier = links.post(2, 0, 2 * kMega, 4);
  links.decide(*earlier);
  EXPECT_DOUBLE_EQ(later->arrived, 6);
  EXPECT_DOUBLE_EQ(earlier->arrived, 7);  // 4–5 and 6–7
}

/// The same rules, second by second, over a list of all messages.
class SlowLinks {
 public:
  struct Message {
    int32_t from, to;
    int64_t seconds, sent;
    int64_t begin = -1, left = -1, arrived = -1;
  };

  SlowLinks(int32_t ranks, int64_t latency) : latency_(latency), out_(ranks), in_(ranks) {}

  void run(std::vector<Message>& messages) {
    while (true) {
      Message* next = nullptr;
      const auto order = [](const Message& m) {
        return std::make_tuple(m.begin < 0 ? m.sent : m.begin, m.from);
      };
      for (Message& m : messages) {
        if (m.arrived < 0 && (next == nullptr || order(m) < order(*next))) next = &m;
      }
      if (next == nullptr) return;
      if (next->begin < 0) {
        std::tie(next->begin, next->left) = take(out_[next->from], next->sent, next->seconds);
      } else {
        const int64_t end = take(in_[next->to], next->begin + latency_, next->seconds).second;
        next->arrived = std::max(end, next->left + latency_);
      }
    }
  }

 private:
  static std::pair<int64_t, int64_t> take(std::vector<bool>& busy, int64_t from, int64_t seconds) {
    int64_t begin = -1, at = from;
    for (; seconds > 0; ++at) {
      if (static_cast<int64_t>(busy.size()) <= at) busy.resize(at + 1);
      if (busy[at]) continue;
      busy[at] = true;
      if (begin < 0) begin = at;
      --seconds;
    }
    return {begin, at};
  }

  int64_t latency_;
  std::vector<std::vector<bool>> out_, in_;
};

TEST(LinkModel, AgreesWithASlowReference) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int32_t ranks = 2 + random() % 6;
    const int64_t latency = random() % 4, span = 1 + random() % 60;
    LinkModel links(link(static_cast<double>(latency), 1e6), ranks);
    SlowLinks slow_links(ranks, latency);
    std::vector<SlowLinks::Message> slow;
    std::vector<std::shared_ptr<Transfer>> fast;
    for (int64_t batch = 1 + random() % 3; batch > 0; --batch) {  // later ones find times taken
      for (int64_t count = 1 + random() % 20; count > 0; --count) {
        const auto from = static_cast<int32_t>(random() % ranks);
        const auto to = static_cast<int32_t>((from + 1 + random() % (ranks - 1)) % ranks);
        const int64_t seconds = 1 + random() % 9, sent = random() % span;
        slow.push_back({from, to, seconds, sent});
        fast.push_back(links.post(from, to, seconds * kMega, static_cast<double>(sent)));
      }
      slow_links.run(slow);
      for (const auto& message : fast) links.decide(*message);
    }
    for (size_t i = 0; i < slow.size(); ++i) {
      ASSERT_NEAR(fast[i]->left, slow[i].left, 1e-9) << "message " << i << ", round " << round;
      ASSERT_NEAR(fast[i]->arrived, slow[i].arrived, 1e-9) << "message " << i << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace distca
