#include "attend/rank_tables.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace distca {
namespace {

at::Tensor index_tensor(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(values.begin(), values.end(), out.data_ptr<int64_t>());
  return out.to(device);
}

using Runs = std::vector<RowRun> Route::*;

// `routes` in the order in which the peers' rows stand in a buffer; side says which end of a run to list.
std::vector<int64_t> list_rows(const std::vector<const Route*>& routes, Runs runs, int64_t RowRun::*side) {
  std::vector<int64_t> rows;
  for (const Route* route : routes) {
    for (const RowRun& run : route->*runs) {
      for (int64_t i = 0; i < run.count; ++i) rows.push_back(run.*side + i);
    }
  }
  return rows;
}

std::vector<PeerRows> list_peers(const std::vector<const Route*>& routes, Runs runs, int32_t Route::*peer) {
  std::vector<PeerRows> peers;
  int64_t offset = 0;
  for (const Route* route : routes) {
    int64_t rows = 0;
    for (const RowRun& run : route->*runs) rows += run.count;
    if (rows > 0) peers.push_back({route->*peer, offset, rows});
    offset += rows;
  }
  return peers;
}

int64_t rows_of_others(const std::vector<PeerRows>& peers, int32_t rank) {
  int64_t rows = 0;
  for (const PeerRows& peer : peers) rows += peer.peer == rank ? 0 : peer.rows;
  return rows;
}

// The rank's own route last: its rows stand behind those that travel.
void move_own_last(std::vector<const Route*>& routes) {
  std::stable_partition(routes.begin(), routes.end(), [](const Route* r) { return r->home != r->server; });
}

// For each home row the places of what servers return of it, as RowTable::returned numbers them.
std::vector<std::vector<int64_t>> parts_of_home_rows(const RowTable& table,
                                                     const std::vector<int64_t>& home_index,
                                                     const std::vector<int64_t>& arrived) {
  std::vector<PeerRows> by_rank = table.home_peers;
  std::sort(by_rank.begin(), by_rank.end(), [](const auto& a, const auto& b) { return a.peer < b.peer; });
  std::vector<std::vector<int64_t>> parts(table.home_rows);
  for (const PeerRows& peer : by_rank) {
    for (int64_t i = peer.offset; i < peer.offset + peer.rows; ++i) {
      const int64_t own = i - table.sent_rows;
      parts[home_index[i]].push_back(own < 0 ? i : table.sent_rows + 1 + arrived[table.received_rows + own]);
    }
  }
  return parts;
}

RowTable make_row_table(std::vector<const Route*> from, std::vector<const Route*> to, Runs runs, int32_t rank,
                        int64_t home_rows, int64_t server_rows, at::Device device) {
  move_own_last(from);
  move_own_last(to);
  RowTable table;
  table.home_rows = home_rows;
  table.server_rows = server_rows;
  table.home_peers = list_peers(from, runs, &Route::server);
  table.server_peers = list_peers(to, runs, &Route::home);
  table.sent_rows = rows_of_others(table.home_peers, rank);
  table.received_rows = rows_of_others(table.server_peers, rank);
  const std::vector<int64_t> home_index = list_rows(from, runs, &RowRun::home_row);
  for (const int64_t row : home_index) {
    DISTCA_CHECK(0 <= row && row < home_rows, "the plan sends row {} of rank {}, which holds {}", row, rank,
                 home_rows);
  }
  table.home_index = index_tensor(home_index, device);
  const std::vector<int64_t> arrived = list_rows(to, runs, &RowRun::server_row);
  std::vector<int64_t> arrange(server_rows, -1);
  for (size_t i = 0; i < arrived.size(); ++i) {
    const int64_t row = arrived[i];
    DISTCA_CHECK(0 <= row && row < server_rows && arrange[row] < 0,
                 "the plan puts two rows, or none of its {}, into row {} of server {}", server_rows, row,
                 rank);
    arrange[row] = static_cast<int64_t>(i);
  }
  DISTCA_CHECK(static_cast<int64_t>(arrived.size()) == server_rows, "{} of {} rows of server {} arrive",
               arrived.size(), server_rows, rank);
  for (int64_t& source : arrange) {
    const int64_t own = source - table.received_rows;
    if (own >= 0) source = table.received_rows + home_index[static_cast<size_t>(table.sent_rows + own)];
  }
  table.server_source = index_tensor(arrange, device);
  table.arrived_index = index_tensor(arrived, device);
  table.returned =
      make_merge_table(home_rows, table.sent_rows, parts_of_home_rows(table, home_index, arrived), device);
  return table;
}

}  // namespace

MergeTable make_merge_table(int64_t rows, int64_t empty,
                            const std::vector<std::vector<int64_t>>& parts_of_rows, at::Device device) {
  MergeTable table;
  table.rows = rows;
  table.empty = empty;
  table.identity = rows == empty;
  std::vector<int64_t> first(rows, empty), split_rows, split_parts;
  size_t most = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto& own = parts_of_rows[row];
    if (!own.empty()) first[row] = own[0];
    table.identity = table.identity && own.size() == 1 && own[0] == row;
    if (own.size() > 1) split_rows.push_back(row);
    most = std::max(most, own.size());
  }
  for (const int64_t row : split_rows) {
    const auto& own = parts_of_rows[row];
    split_parts.insert(split_parts.end(), own.begin(), own.end());
    split_parts.insert(split_parts.end(), most - own.size(), empty);
  }
  table.first = index_tensor(first, device);
  table.split_rows = index_tensor(split_rows, device);
  const int64_t width = split_rows.empty() ? 0 : static_cast<int64_t>(most);
  table.split_parts = index_tensor(split_parts, device).view({table.split_rows.size(0), width});
  return table;
}

RankTables make_rank_tables(const Plan& plan, const Exchange& exchange, uint64_t digest, int32_t rank,
                            at::Device device, std::optional<int64_t> home_rows) {
  DISTCA_CHECK(0 <= rank && rank < plan.servers, "rank {} is none of the plan's {} servers", rank,
               plan.servers);
  RankTables tables;
  tables.rank = rank;
  tables.ranks = plan.servers;
  tables.digest = digest;
  tables.home_rows = home_rows.value_or(rank < plan.layout.ranks ? plan.layout.rows : 0);
  const ServerRows& server = exchange.servers[rank];
  std::vector<const Route*> from;
  for (const Route& route : exchange.from_home(rank)) from.push_back(&route);
  const std::vector<const Route*> to = exchange.to_server(rank);
  tables.q = make_row_table(from, to, &Route::q, rank, tables.home_rows, server.q_rows, device);
  tables.kv = make_row_table(from, to, &Route::kv, rank, tables.home_rows, server.kv_rows, device);
  tables.o_rows = server.o_rows;
  std::vector<std::vector<int64_t>> parts(server.q_rows);
  for (const RowTask& task : server.tasks) {
    tables.tasks.push_back(
        {task.q_row, task.q_len, task.q_pos, task.kv_row, task.kv_len, task.kv_pos, task.o_row});
    for (int64_t i = 0; i < task.q_len; ++i) parts[task.q_row + i].push_back(task.o_row + i);
  }
  tables.server_merge = make_merge_table(server.q_rows, server.o_rows, parts, device);
  return tables;
}

RankTables on_device(const RankTables& tables, at::Device device) {
  RankTables out = tables;
  for (RowTable* table : {&out.q, &out.kv}) {
    for (at::Tensor* index : {&table->home_index, &table->server_source, &table->arrived_index})
      *index = index->to(device);
  }
  for (MergeTable* merge : {&out.server_merge, &out.q.returned, &out.kv.returned}) {
    for (at::Tensor* index : {&merge->first, &merge->split_rows, &merge->split_parts})
      *index = index->to(device);
  }
  return out;
}

}  // namespace distca
