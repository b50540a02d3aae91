#include "plan/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/check.h"
#include "plan/random_plan.h"
#include "plan/validate.h"

namespace distca {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string fault_of(const Exchange& exchange, const Plan& plan) {
  try {
    validate(exchange, plan);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

/// Carries a tag for each token along the tables, and checks that each server's rows hold the tokens its
/// tasks expect at the positions they expect.
void check_by_carrying_tags(const Exchange& exchange, const Plan& plan) {
  using Tag = std::pair<int32_t, int64_t>;
  const Tag nothing{-1, -1};
  std::vector<std::vector<Tag>> home(static_cast<size_t>(plan.layout.ranks));
  for (auto& rows : home) rows.assign(static_cast<size_t>(plan.layout.rows), nothing);
  for (const Shard& shard : plan.layout.shards) {
    for (int64_t i = 0; i < shard.tokens.size(); ++i) {
      home[static_cast<size_t>(shard.home)][static_cast<size_t>(shard.row + i)] = {shard.doc,
                                                                                   shard.tokens.begin + i};
    }
  }
  size_t next = 0;
  for (int32_t server = 0; server < plan.servers; ++server) {
    const ServerRows& rows = exchange.servers[static_cast<size_t>(server)];
    std::vector<Tag> q(static_cast<size_t>(rows.q_rows), nothing),
        kv(static_cast<size_t>(rows.kv_rows), nothing);
    for (const Route* route : exchange.to_server(server)) {
      for (const bool is_q : {true, false}) {
        for (const RowRun& run : is_q ? route->q : route->kv) {
          for (int64_t i = 0; i < run.count; ++i) {
            Tag& to = (is_q ? q : kv)[static_cast<size_t>(run.server_row + i)];
            ASSERT_EQ(to, nothing);
            to = home[static_cast<size_t>(route->home)][static_cast<size_t>(run.home_row + i)];
          }
        }
      }
    }
    EXPECT_TRUE(std::is_sorted(q.begin(), q.end()));
    EXPECT_TRUE(std::is_sorted(kv.begin(), kv.end()));
    EXPECT_EQ(std::set<Tag>(q.begin(), q.end()).size(), q.size());
    EXPECT_EQ(std::set<Tag>(kv.begin(), kv.end()).size(), kv.size());
    std::set<Tag> q_read, kv_read;
    for (const RowTask& row_task : rows.tasks) {
      const Task& task = plan.tasks[next++];
      ASSERT_EQ(task.server, server);
      for (int64_t i = 0; i < row_task.q_len; ++i) {
        ASSERT_EQ(q[static_cast<size_t>(row_task.q_row + i)], Tag(task.doc, row_task.q_pos + i));
        q_read.insert({task.doc, row_task.q_pos + i});
      }
      for (int64_t i = 0; i < row_task.kv_len; ++i) {
        ASSERT_EQ(kv[static_cast<size_t>(row_task.kv_row + i)], Tag(task.doc, row_task.kv_pos + i));
        kv_read.insert({task.doc, row_task.kv_pos + i});
      }
    }
    EXPECT_EQ(q_read.size(), q.size());
    EXPECT_EQ(kv_read.size(), kv.size());
  }
}

TEST(Exchange, ServersReceiveExactlyTheRowsTheirTasksRead) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Plan plan = random_plan(random, random_layout(random, 8, 600));
    const Exchange exchange = make_exchange(plan);
    check_by_carrying_tags(exchange, plan);
    EXPECT_EQ(fault_of(exchange, plan), "none");
  }
}

TEST(Exchange, KeysThatSeveralTasksReadAreSentOnce) {
  const Layout layout = pack_in_order({256, 256}, 2);
  const Plan plan{
      layout, 2, {{0, {0, 128}, {0, 128}, 1}, {0, {128, 256}, {0, 256}, 1}, {1, {0, 256}, {0, 256}, 1}}};
  const Exchange exchange = make_exchange(plan);
  ASSERT_EQ(exchange.routes.size(), 2u);
  EXPECT_EQ(exchange.routes[0], (Route{0, 1, {{0, 0, 256}}, {{0, 0, 256}}, 256, 256}));
  EXPECT_EQ(exchange.routes[1], (Route{1, 1, {{0, 256, 256}}, {{0, 256, 256}}, 256, 256}));
  EXPECT_THAT(exchange.servers[1].tasks,
              ElementsAre(RowTask{0, 128, 0, 0, 128, 0, 0}, RowTask{128, 128, 128, 0, 256, 0, 128},
                          RowTask{256, 256, 0, 256, 256, 0, 256}));
  EXPECT_EQ(exchange.servers[0].q_rows + exchange.servers[0].kv_rows, 0);
}

TEST(Exchange, SplitKeysShareQueryRowsAndHaveOutputRowsOfTheirOwn) {
  const Plan plan{pack_in_order({256}, 1),
                  1,
                  {{0, {0, 128}, {0, 128}, 0}, {0, {128, 256}, {0, 128}, 0}, {0, {128, 256}, {128, 256}, 0}}};
  const Exchange exchange = make_exchange(plan);
  EXPECT_EQ(exchange.servers[0].q_rows, 256);
  EXPECT_EQ(exchange.servers[0].o_rows, 384);
  EXPECT_EQ(exchange.servers[0].tasks[1], (RowTask{128, 128, 128, 0, 128, 0, 128}));
  EXPECT_EQ(exchange.servers[0].tasks[2], (RowTask{128, 128, 128, 128, 128, 128, 256}));
}

TEST(Exchange, RoutesAreFoundByHomeAndByServer) {
  const Plan plan{pack_in_order({384}, 3),
                  4,
                  {{0, {0, 128}, {0, 128}, 0}, {0, {256, 384}, {0, 384}, 0}, {0, {128, 256}, {0, 256}, 3}}};
  const Exchange exchange = make_exchange(plan);
  ASSERT_EQ(exchange.from_home(0).size(), 2u);
  EXPECT_EQ(exchange.from_home(0)[1].server, 3);
  EXPECT_EQ(exchange.from_home(0)[1].q_rows, 0);
  EXPECT_EQ(exchange.from_home(0)[1].kv_rows, 128);
  ASSERT_EQ(exchange.to_server(0).size(), 3u);
  EXPECT_EQ(exchange.to_server(0)[2]->home, 2);
  EXPECT_TRUE(exchange.to_server(1).empty());
}

/// Changes one number of the tables.
void damage(Random& random, Exchange& exchange) {
  const auto pick = [&](auto& list) -> auto& {
    return list[static_cast<size_t>(random.between(0, static_cast<int64_t>(list.size()) - 1))];
  };
  const int64_t by = (random.between(0, 1) == 0 ? -1 : 1) * random.between(1, 3);
  if (random.between(0, 1) == 0) {
    Route& route = pick(exchange.routes);
    int64_t choice = random.between(0, 4);
    if (choice == 0) {
      route.home += static_cast<int32_t>(by);
    } else if (choice == 1) {
      route.server += static_cast<int32_t>(by);
    } else if (choice == 2) {
      (random.between(0, 1) == 0 ? route.q_rows : route.kv_rows) += by;
    } else {
      RowRun& run = pick(route.q.empty() || (choice == 3 && !route.kv.empty()) ? route.kv : route.q);
      int64_t* const fields[] = {&run.home_row, &run.server_row, &run.count};
      *fields[random.between(0, 2)] += by;
    }
    return;
  }
  ServerRows* rows = &pick(exchange.servers);
  while (rows->tasks.empty()) rows = &pick(exchange.servers);
  RowTask& task = pick(rows->tasks);
  int64_t* const fields[] = {&rows->q_rows, &rows->kv_rows, &rows->o_rows, &task.q_row,  &task.q_len,
                             &task.q_pos,   &task.kv_row,   &task.kv_len,  &task.kv_pos, &task.o_row};
  *fields[random.between(0, 9)] += by;
}

TEST(Exchange, TwoHundredDamagedTablesAreEachCaughtByName) {
  int damaged = 0;
  for (uint64_t seed = 0; damaged < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Plan plan = random_plan(random, random_layout(random, 6, 600));
    if (plan.tasks.empty()) continue;
    ++damaged;
    Exchange exchange = make_exchange(plan);
    damage(random, exchange);
    ASSERT_THAT(fault_of(exchange, plan), testing::AnyOf(HasSubstr("server "), HasSubstr("route ")));
  }
}

TEST(Exchange, APlanWithoutTokensHasNoRoutes) {
  const Exchange exchange = make_exchange({pack_in_order({0, 0}, 3), 4, {}});
  EXPECT_TRUE(exchange.routes.empty());
  EXPECT_EQ(exchange.servers.size(), 4u);
}

}  // namespace
}  // namespace distca
