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

std::vector<const Route*> without_own(std::vector<const Route*> routes) {
  std::erase_if(routes, [](const Route* route) { return route->home == route->server; });
  return routes;
}

/// Half-open run of server rows that a task reads.
using RowRange = std::pair<int64_t, int64_t>;

/// Which server rows have to be copied: those of every task whose rows don't stand in one run where they are,
/// and of every task that shares any with such a task.
std::vector<bool> rows_to_copy(const std::vector<int64_t>& place, int64_t home_rows,
                               const std::vector<RowRange>& tasks) {
  const auto rows = static_cast<int64_t>(place.size());
  std::vector<int64_t> breaks(place.size() + 1, 0);  // before each row
  for (int64_t row = 1; row < rows; ++row) {
    const bool together = place[row] == place[row - 1] + 1 && place[row] != home_rows;
    breaks[row] = breaks[row - 1] + (together ? 0 : 1);
  }
  std::vector<bool> copy(place.size(), false);
  std::vector<bool> whole(tasks.size(), false);
  for (bool more = true; more;) {
    more = false;
    std::vector<int64_t> copied_before(place.size() + 1, 0);
    for (int64_t row = 0; row < rows; ++row)
      copied_before[row + 1] = copied_before[row] + (copy[row] ? 1 : 0);
    for (size_t i = 0; i < tasks.size(); ++i) {
      const auto [begin, end] = tasks[i];
      if (whole[i] || begin >= end) continue;
      if (breaks[end - 1] == breaks[begin] && copied_before[end] == copied_before[begin]) continue;
      std::fill(copy.begin() + begin, copy.begin() + end, true);
      whole[i] = more = true;
    }
  }
  return copy;
}

/// A row table, and where each server row stands in it.
struct PlacedRows {
  RowTable table;
  std::vector<int64_t> place;
};

void copy_rows(PlacedRows& rows, const std::vector<bool>& copy, at::Device device) {
  RowTable& table = rows.table;
  std::vector<int64_t> copied, home_back, home_copies, arrived_back, arrived_copies;
  for (size_t row = 0; row < copy.size(); ++row) {
    if (!copy[row]) continue;
    const int64_t from = rows.place[row], to = table.arrived_rows + static_cast<int64_t>(copied.size());
    const bool own = from < table.home_rows;
    (own ? home_back : arrived_back).push_back(own ? from : from - table.home_rows);
    (own ? home_copies : arrived_copies).push_back(to);
    copied.push_back(from);
    table.copied_server_rows.push_back(static_cast<int64_t>(row));
    rows.place[row] = table.home_rows + to;
  }
  table.copied_rows = static_cast<int64_t>(copied.size());
  table.copied = index_tensor(copied, device);
  table.home_back = index_tensor(home_back, device);
  table.home_copies = index_tensor(home_copies, device);
  table.arrived_back = index_tensor(arrived_back, device);
  table.arrived_copies = index_tensor(arrived_copies, device);
}

/// For each home row the places of what servers return of it, as RowTable::returned numbers them.
std::vector<std::vector<int64_t>> parts_of_home_rows(const RowTable& table, const std::vector<int64_t>& sent,
                                                     const std::vector<bool>& served_here, int32_t rank) {
  std::vector<std::vector<int64_t>> parts(table.home_rows);
  const auto add_own = [&] {
    for (int64_t row = 0; row < table.home_rows; ++row)
      if (served_here[row]) parts[row].push_back(table.sent_rows + 1 + row);
  };
  bool own_added = false;
  for (const PeerRows& peer : table.home_peers) {
    if (peer.peer > rank && !std::exchange(own_added, true)) add_own();
    for (int64_t i = peer.offset; i < peer.offset + peer.rows; ++i) parts[sent[i]].push_back(i);
  }
  if (!own_added) add_own();
  return parts;
}

PlacedRows make_row_table(const std::vector<const Route*>& from, const std::vector<const Route*>& to,
                          Runs runs, int32_t rank, int64_t home_rows, int64_t server_rows,
                          const std::vector<RowRange>& tasks, at::Device device) {
  PlacedRows out;
  RowTable& table = out.table;
  table.home_rows = home_rows;
  table.server_rows = server_rows;
  const std::vector<const Route*> sending = without_own(from), receiving = without_own(to);
  table.home_peers = list_peers(sending, runs, &Route::server);
  table.server_peers = list_peers(receiving, runs, &Route::home);
  const std::vector<int64_t> sent = list_rows(sending, runs, &RowRun::home_row);
  const std::vector<int64_t> arrived = list_rows(receiving, runs, &RowRun::server_row);
  table.sent_rows = static_cast<int64_t>(sent.size());
  table.arrived_rows = static_cast<int64_t>(arrived.size());

  out.place.assign(server_rows, -1);
  const auto put = [&](int64_t row, int64_t place) {
    DISTCA_CHECK(0 <= row && row < server_rows && out.place[row] < 0,
                 "the plan puts two rows, or none of its {}, into row {} of server {}", server_rows, row,
                 rank);
    out.place[row] = place;
  };
  for (size_t i = 0; i < arrived.size(); ++i) put(arrived[i], home_rows + static_cast<int64_t>(i));
  std::vector<bool> served_here(home_rows, false);
  const auto check_home = [&](int64_t row) {
    DISTCA_CHECK(0 <= row && row < home_rows, "the plan sends row {} of rank {}, which holds {}", row, rank,
                 home_rows);
  };
  for (const int64_t row : sent) check_home(row);
  for (const Route* route : to) {
    if (route->home != rank) continue;
    for (const RowRun& run : route->*runs) {
      for (int64_t i = 0; i < run.count; ++i) {
        check_home(run.home_row + i);
        put(run.server_row + i, run.home_row + i);
        served_here[run.home_row + i] = true;
      }
    }
  }
  DISTCA_CHECK(std::find(out.place.begin(), out.place.end(), -1) == out.place.end(),
               "not all of {} rows of server {} arrive", server_rows, rank);
  table.sent = index_tensor(sent, device);
  copy_rows(out, rows_to_copy(out.place, home_rows, tasks), device);
  table.returned = make_merge_table(parts_of_home_rows(table, sent, served_here, rank), table.sent_rows,
                                    table.sent_rows + 1, device);
  return out;
}

/// Gives each task its output rows, and says where results of tasks that share query rows merge.
void place_outputs(RankTables& tables, at::Device device) {
  const int64_t rows = tables.q.rows(), home = tables.home_rows;
  std::vector<std::vector<int64_t>> parts(rows);
  std::vector<bool> shares(rows, false);
  bool any = false;
  tables.o_rows = rows;
  for (KernelTask& task : tables.tasks) {
    const auto at = parts.begin() + task.q_row;
    const bool first = std::all_of(at, at + task.q_len, [](const auto& own) { return own.empty(); });
    task.o_row = first ? task.q_row : tables.o_rows;
    if (!first) tables.o_rows += task.q_len;
    for (int64_t i = 0; i < task.q_len; ++i) {
      parts[task.q_row + i].push_back(task.o_row + i);
      shares[task.q_row + i] = shares[task.q_row + i] || !first;
    }
    any = any || !first;
  }
  const int64_t empty = tables.o_rows++;
  // A row that nobody shares is in place, or holds nothing that anyone reads.
  for (int64_t row = 0; row < rows; ++row)
    if (!shares[row]) parts[row] = {row};
  if (!any) parts.clear();
  const auto middle = parts.begin() + (any ? home : 0);
  tables.merge_home = make_merge_table({parts.begin(), middle}, empty, 0, device);
  tables.merge_rest = make_merge_table({middle, parts.end()}, empty, home, device);
}

}  // namespace

MergeTable make_merge_table(const std::vector<std::vector<int64_t>>& parts_of_rows, int64_t empty,
                            int64_t in_place, at::Device device) {
  std::vector<int64_t> empty_rows, moved_rows, moved_parts, split_rows, split_parts;
  size_t most = 0;
  const auto rows = static_cast<int64_t>(parts_of_rows.size());
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int64_t>& own = parts_of_rows[row];
    most = std::max(most, own.size());
    if (own.empty()) empty_rows.push_back(row);
    if (own.size() > 1) split_rows.push_back(row);
    if (own.size() != 1 || own[0] == in_place + row) continue;
    moved_rows.push_back(row);
    moved_parts.push_back(own[0]);
  }
  for (const int64_t row : split_rows) {
    const std::vector<int64_t>& own = parts_of_rows[row];
    split_parts.insert(split_parts.end(), own.begin(), own.end());
    split_parts.insert(split_parts.end(), most - own.size(), empty);
  }
  MergeTable table;
  table.empty = empty;
  table.empty_rows = index_tensor(empty_rows, device);
  table.moved_rows = index_tensor(moved_rows, device);
  table.moved_parts = index_tensor(moved_parts, device);
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
  std::vector<RowRange> q_tasks, kv_tasks;
  for (const RowTask& task : server.tasks) {
    q_tasks.push_back({task.q_row, task.q_row + task.q_len});
    kv_tasks.push_back({task.kv_row, task.kv_row + task.kv_len});
  }
  PlacedRows q = make_row_table(from, to, &Route::q, rank, tables.home_rows, server.q_rows, q_tasks, device);
  PlacedRows kv =
      make_row_table(from, to, &Route::kv, rank, tables.home_rows, server.kv_rows, kv_tasks, device);
  const auto placed = [](const PlacedRows& rows, int64_t row, int64_t count) {
    return count == 0 ? 0 : rows.place[row];
  };
  for (const RowTask& task : server.tasks) {
    tables.tasks.push_back({placed(q, task.q_row, task.q_len), task.q_len, task.q_pos,
                            placed(kv, task.kv_row, task.kv_len), task.kv_len, task.kv_pos, 0});
  }
  tables.q = std::move(q.table);
  tables.kv = std::move(kv.table);
  place_outputs(tables, device);
  for (const KernelTask& task : tables.tasks) {
    const bool local =
        task.q_row + task.q_len <= tables.home_rows && task.kv_row + task.kv_len <= tables.home_rows;
    (local ? tables.local_tasks : tables.other_tasks).push_back(task);
  }
  return tables;
}

RankTables map_indices(const RankTables& tables, const TensorMap& map) {
  RankTables out = tables;
  for (RowTable* table : {&out.q, &out.kv}) {
    for (at::Tensor* index : {&table->sent, &table->copied, &table->home_back, &table->home_copies,
                              &table->arrived_back, &table->arrived_copies})
      *index = map(*index);
  }
  for (MergeTable* merge : {&out.merge_home, &out.merge_rest, &out.q.returned, &out.kv.returned}) {
    for (at::Tensor* index : {&merge->empty_rows, &merge->moved_rows, &merge->moved_parts, &merge->split_rows,
                              &merge->split_parts})
      *index = map(*index);
  }
  if (tables.kernel) out.kernel = tables.kernel->mapped(map);
  return out;
}

}  // namespace distca
