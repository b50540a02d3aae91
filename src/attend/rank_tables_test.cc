#include "attend/rank_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/layout.h"
#include "plan/random_plan.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RankTables tables_of(const Plan& plan, int32_t rank) {
  return make_rank_tables(plan, make_exchange(plan), plan.digest(), rank, at::kCPU);
}

std::vector<int64_t> values(const at::Tensor& index) {
  return {index.data_ptr<int64_t>(), index.data_ptr<int64_t>() + index.numel()};
}

TEST(RankTables, WhatARankComputesOfItsOwnDocumentsIsNeverCopied) {
  const Layout layout = pack_in_order({100, 156, 256}, 2);
  const Plan plan{
      layout, 2, {{0, {0, 100}, {0, 100}, 0}, {1, {0, 156}, {0, 156}, 0}, {2, {0, 256}, {0, 256}, 1}}};
  for (const int32_t rank : {0, 1}) {
    const RankTables tables = tables_of(plan, rank);
    for (const RowTable& table : {tables.q, tables.kv}) {
      EXPECT_EQ(table.sent_rows, 0);
      EXPECT_EQ(table.rest_rows(), 0);
      EXPECT_EQ(table.rows(), 256);
      EXPECT_EQ(table.returned.moved_rows.numel() + table.returned.split_rows.numel(), 0);
    }
    EXPECT_EQ(tables.o_rows, 257) << "and the one that is empty";
  }
  EXPECT_EQ(tables_of(plan, 0).tasks[1].q_row, 100);
}

TEST(RankTables, KeysOfADocumentThatBeganElsewhereAreCopiedBesideItsPrefix) {
  const Layout layout = pack_in_order({300, 84}, 2);  // chunks of 192 rows: 108 of the first go on
  const Plan plan{
      layout, 2, {{0, {0, 192}, {0, 192}, 0}, {0, {192, 300}, {0, 300}, 1}, {1, {0, 84}, {0, 84}, 1}}};
  const RankTables tables = tables_of(plan, 1);
  EXPECT_EQ(tables.q.rest_rows(), 0);
  EXPECT_EQ(tables.kv.arrived_rows, 192);
  EXPECT_EQ(tables.kv.copied_rows, 300);
  EXPECT_EQ(tables.tasks[0].kv_row, 192 + 192);
  EXPECT_EQ(tables.tasks[1].kv_row, 108) << "in place";
  EXPECT_EQ(tables.kv.home_back.numel(), 108);
  EXPECT_EQ(tables.kv.arrived_back.numel(), 192);
  const RankTables home = tables_of(plan, 0);
  EXPECT_EQ(home.kv.sent_rows, 192);
  EXPECT_EQ(home.kv.rest_rows(), 0);
  EXPECT_EQ(home.kv.returned.split_rows.numel(), 192) << "gradients of both ranks";
}

TEST(RankTables, RowsThatArriveTogetherAreReadWhereTheyArrived) {
  const Layout layout = pack_in_order({128, 128}, 2);
  const Plan plan{layout, 2, {{0, {0, 128}, {0, 128}, 0}, {1, {0, 128}, {0, 128}, 0}}};
  const RankTables tables = tables_of(plan, 0);
  EXPECT_EQ(tables.kv.copied_rows, 0);
  EXPECT_EQ(tables.tasks[1].q_row, 128);
  EXPECT_EQ(tables.tasks[1].kv_row, 128);
  const RankTables home = tables_of(plan, 1);
  EXPECT_EQ(home.q.returned.moved_rows.numel(), 128);
  EXPECT_EQ(values(home.q.returned.moved_parts).front(), 0);
}

TEST(RankTables, TasksThatShareQueriesWriteApartAndMergeInPlace) {
  const Layout layout = pack_in_order({256}, 1);
  const Plan plan{layout, 1, {{0, {0, 256}, {0, 128}, 0}, {0, {128, 256}, {128, 256}, 0}}};
  const RankTables tables = tables_of(plan, 0);
  EXPECT_EQ(tables.tasks[0].o_row, 0);
  EXPECT_EQ(tables.tasks[1].o_row, 256);
  EXPECT_EQ(tables.o_rows, 256 + 128 + 1);
  EXPECT_EQ(tables.merge_home.split_rows.numel(), 128);
  EXPECT_THAT(values(tables.merge_home.split_parts[0].contiguous()), ElementsAre(128, 256));
  EXPECT_THAT(values(tables.merge_rest.split_rows), IsEmpty());
}

TEST(RankTables, EveryRowThatATaskReadsIsTheOneThatThePlanMeant) {
  const uint64_t base = std::random_device{}();
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t seed = base + i;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Layout layout =
        pack_in_order({random.between(0, 600), random.between(1, 300), 1, random.between(0, 90)},
                      static_cast<int32_t>(random.between(1, 5)));
    const Plan plan = random_plan(random, layout, static_cast<int32_t>(random.between(0, 1)));
    const Exchange exchange = make_exchange(plan);
    // (document, position) of each home row of each rank.
    std::vector<std::vector<std::pair<int32_t, int64_t>>> token(
        static_cast<size_t>(layout.ranks), std::vector<std::pair<int32_t, int64_t>>(layout.rows, {-1, -1}));
    for (const Shard& shard : plan.layout.shards)
      for (int64_t p = shard.tokens.begin; p < shard.tokens.end; ++p)
        token[shard.home][shard.row + p - shard.tokens.begin] = {shard.doc, p};
    std::vector<RankTables> all;
    for (int32_t rank = 0; rank < plan.servers; ++rank)
      all.push_back(make_rank_tables(plan, exchange, 0, rank, at::kCPU));
    for (int32_t rank = 0; rank < plan.servers; ++rank) {
      const auto tokens_of = [&](RowTable RankTables::*kind) {
        const RowTable& table = all[rank].*kind;
        std::vector<std::pair<int32_t, int64_t>> rows;
        if (rank < layout.ranks) rows.assign(token[rank].begin(), token[rank].begin() + table.home_rows);
        for (const PeerRows& peer : table.server_peers) {
          const RowTable& from = all[peer.peer].*kind;
          for (const PeerRows& to : from.home_peers) {
            if (to.peer != rank) continue;
            EXPECT_EQ(to.rows, peer.rows);
            for (int64_t j = 0; j < to.rows; ++j)
              rows.push_back(token[peer.peer][values(from.sent)[to.offset + j]]);
          }
        }
        for (const int64_t from : values(table.copied)) rows.push_back(rows[from]);
        EXPECT_EQ(static_cast<int64_t>(rows.size()), table.rows());
        return rows;
      };
      const auto q = tokens_of(&RankTables::q), kv = tokens_of(&RankTables::kv);
      size_t next = 0;
      for (const Task& task : plan.tasks) {
        if (task.server != rank) continue;
        const KernelTask& at = all[rank].tasks[next++];
        for (int64_t j = 0; j < at.q_len; ++j) {
          ASSERT_EQ(q[at.q_row + j], std::pair(task.doc, task.q.begin + j));
        }
        for (int64_t j = 0; j < at.kv_len; ++j) {
          ASSERT_EQ(kv[at.kv_row + j], std::pair(task.doc, task.kv.begin + j));
        }
        const int64_t home = all[rank].home_rows;
        EXPECT_TRUE(at.q_row >= home || at.q_row + at.q_len <= home);
        EXPECT_TRUE(at.kv_row >= home || at.kv_row + at.kv_len <= home);
      }
    }
  }
}

}  // namespace
}  // namespace distca
