#include "plan/traffic.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "plan/random_plan.h"

namespace distca {
namespace {

/// The same sums, row by row from the definition.
Traffic counted_traffic(const Plan& plan, const RowBytes& bytes) {
  Traffic traffic;
  traffic.ranks.resize(static_cast<size_t>(plan.servers));
  std::map<std::pair<int32_t, int64_t>, int32_t> home;
  for (const Shard& shard : plan.layout.shards) {
    for (int64_t p = shard.tokens.begin; p < shard.tokens.end; ++p) home[{shard.doc, p}] = shard.home;
  }
  std::set<std::tuple<int32_t, int32_t, int64_t>> q, kv;  // server, doc, position
  for (const Task& task : plan.tasks) {
    for (int64_t p = task.q.begin; p < task.q.end; ++p) q.insert({task.server, task.doc, p});
    for (int64_t p = task.kv.begin; p < task.kv.end; ++p) kv.insert({task.server, task.doc, p});
  }
  const auto ship = [&](int32_t from, int32_t to, int64_t count, int64_t& kind) {
    if (from == to) return;
    kind += count;
    traffic.ranks[static_cast<size_t>(from)].send += count;
    traffic.ranks[static_cast<size_t>(to)].receive += count;
  };
  std::map<std::pair<int32_t, int64_t>, int> servers_of_row;
  for (const auto& [server, doc, position] : q) ++servers_of_row[{doc, position}];
  for (const auto& [server, doc, position] : q) {
    const int32_t from = home[{doc, position}];
    ship(from, server, bytes.q, traffic.q);
    ship(server, from, bytes.o, traffic.o);
    if (servers_of_row[{doc, position}] > 1) ship(server, from, bytes.lse, traffic.lse);
  }
  for (const auto& [server, doc, position] : kv) {
    ship(home[{doc, position}], server, bytes.k, traffic.k);
    ship(home[{doc, position}], server, bytes.v, traffic.v);
  }
  return traffic;
}

TEST(Traffic, EqualsACountOfEveryRow) {
  const RowBytes bytes{7, 3, 5, 11, 2};
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Plan plan = random_plan(random, random_layout(random, 5, 500));
    const Traffic traffic = planned_traffic(plan, make_exchange(plan), bytes),
                  counted = counted_traffic(plan, bytes);
    EXPECT_EQ(traffic.q, counted.q);
    EXPECT_EQ(traffic.k, counted.k);
    EXPECT_EQ(traffic.v, counted.v);
    EXPECT_EQ(traffic.o, counted.o);
    EXPECT_EQ(traffic.lse, counted.lse);
    for (size_t r = 0; r < traffic.ranks.size(); ++r) {
      EXPECT_EQ(traffic.ranks[r].send, counted.ranks[r].send) << r;
      EXPECT_EQ(traffic.ranks[r].receive, counted.ranks[r].receive) << r;
    }
  }
}

TEST(Traffic, RowBytesAreThoseOfLlama) {
  const RowBytes bytes = row_bytes({32, 8, 128, 2});
  EXPECT_EQ(bytes.q, 8192);
  EXPECT_EQ(bytes.o, 8192);
  EXPECT_EQ(bytes.kv(), 4096);
  EXPECT_EQ(bytes.lse, 128);
  EXPECT_EQ(row_bytes({2, 1, 32, 8}).lse, 16);
}

TEST(Traffic, HeldRowsAreOwnAndReceivedOnes) {
  const Plan plan{pack_in_order({300}, 3),
                  4,
                  {{0, {0, 100}, {0, 100}, 0}, {0, {200, 300}, {0, 300}, 2}, {0, {100, 200}, {0, 200}, 3}}};
  EXPECT_EQ(held_kv_rows(plan, make_exchange(plan)), (std::vector<int64_t>{100, 100, 300, 200}));
}

}  // namespace
}  // namespace distca
