#include "comm/stream_order.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace distca {
namespace {

using Kind = StreamEntry::Kind;

StreamEntry access(Kind kind, int32_t stream, uint64_t begin, uint64_t end) {
  return {kind, stream, begin, end, -1, "a test"};
}

StreamEntry event(Kind kind, int32_t stream, int64_t number) {
  return {kind, stream, 0, 0, number, "an event"};
}

TEST(StreamOrder, OneStreamIsAlwaysOrdered) {
  EXPECT_TRUE(unordered_accesses({access(Kind::kWrite, 0, 0, 8), access(Kind::kRead, 0, 0, 8),
                                  access(Kind::kRelease, 0, 0, 8), access(Kind::kWrite, 0, 4, 12)})
                  .empty());
}

TEST(StreamOrder, AnEventOrdersWhatIsBeforeItWithWhatIsAfterTheWait) {
  const std::vector<StreamEntry> good = {access(Kind::kWrite, 0, 0, 8), event(Kind::kRecord, 0, 1),
                                         event(Kind::kWait, 1, 1), access(Kind::kRead, 1, 4, 6)};
  EXPECT_TRUE(unordered_accesses(good).empty());
  EXPECT_EQ(unordered_accesses(good, 1).size(), 1u);
  EXPECT_EQ(unordered_accesses(good, 2).size(), 1u);
  // Recorded too early.
  EXPECT_EQ(unordered_accesses({good[1], good[0], good[2], good[3]}).size(), 1u);
  EXPECT_EQ(unordered_accesses({good[0], good[1], good[3], good[2]})[0],
            "stream 1 reads 2 bytes in a test, not ordered with before: stream 0 writes 8 bytes in a test");
}

TEST(StreamOrder, ReuseWaitsForReads) {
  const std::vector<StreamEntry> early = {access(Kind::kWrite, 0, 0, 8), event(Kind::kRecord, 0, 1),
                                          event(Kind::kWait, 1, 1), access(Kind::kRead, 1, 0, 8),
                                          access(Kind::kRelease, 0, 0, 8)};
  EXPECT_EQ(unordered_accesses(early).size(), 1u);
  std::vector<StreamEntry> late = early;
  late.insert(late.begin() + 4, {event(Kind::kRecord, 1, 2), event(Kind::kWait, 0, 2)});
  EXPECT_TRUE(unordered_accesses(late).empty());
}

TEST(StreamOrder, ReadsOfSeveralStreamsMayOverlap) {
  EXPECT_TRUE(unordered_accesses({access(Kind::kRead, 0, 0, 8), access(Kind::kRead, 1, 0, 8)}).empty());
}

/// The slow, obvious answer: b comes after a where a chain of stream order and events leads from one to the
/// other.
bool has_race(const std::vector<StreamEntry>& entries) {
  const size_t n = entries.size();
  std::vector<std::vector<char>> reaches(n, std::vector<char>(n, 0));
  for (size_t b = 0; b < n; ++b) {
    for (size_t a = 0; a < b; ++a) {
      const bool ordered = entries[a].stream == entries[b].stream ||
                           (entries[a].kind == Kind::kRecord && entries[b].kind == Kind::kWait &&
                            entries[a].event == entries[b].event);
      if (!ordered) continue;
      reaches[a][b] = 1;
      for (size_t c = 0; c < a; ++c) reaches[c][b] |= reaches[c][a];
    }
  }
  for (size_t b = 0; b < n; ++b) {
    for (size_t a = 0; a < b; ++a) {
      const bool both = entries[a].begin < entries[b].end && entries[b].begin < entries[a].end;
      const bool writes = entries[a].kind != Kind::kRead || entries[b].kind != Kind::kRead;
      if (both && writes && !reaches[a][b]) return true;
    }
  }
  return false;
}

TEST(StreamOrder, AgreesWithASearchOverRandomLogs) {
  int races = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<StreamEntry> entries;
    int64_t events = 0;
    const int64_t bytes = 4 + static_cast<int64_t>(random() % 60);
    for (size_t i = 0; i < 4 + random() % 20; ++i) {
      const auto stream = static_cast<int32_t>(random() % 3);
      if (random() % 5 < 3) {
        if (random() % 2 || events == 0) {
          entries.push_back(event(Kind::kRecord, stream, events++));
        } else {
          entries.push_back(
              event(Kind::kWait, stream, static_cast<int64_t>(random() % static_cast<uint64_t>(events))));
        }
        continue;
      }
      const uint64_t begin = random() % static_cast<uint64_t>(bytes);
      const Kind kinds[] = {Kind::kRead, Kind::kRead, Kind::kWrite, Kind::kRelease};
      entries.push_back(access(kinds[random() % 4], stream, begin, begin + 1 + random() % 6));
    }
    const bool race = has_race(entries);
    races += race;
    ASSERT_EQ(!unordered_accesses(entries).empty(), race) << "seed " << seed;
  }
  EXPECT_GT(races, 200);
  EXPECT_LT(races, 1900);
}

}  // namespace
}  // namespace distca
