// What one rank needs to know of a plan, as index tensors: which of its rows go to whom, where arrived rows
// belong, and which partial outputs merge into which row. Made once per plan and rank, used by every layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attend/kernel_tables.h"
#include "kernel/attention.h"
#include "plan/exchange.h"

namespace distca {

/// A run of rows in a buffer that is ordered by peer.
struct PeerRows {
  int32_t peer = 0;
  int64_t offset = 0, rows = 0;
};

/// Which partial rows make up each merged row. Rows that are already where they belong are in none of the
/// lists. Row `empty` of the parts stands for none.
struct MergeTable {
  int64_t empty = 0;
  at::Tensor empty_rows;               // (E): rows of no part
  at::Tensor moved_rows, moved_parts;  // (M): rows of one part, and which
  at::Tensor split_rows,
      split_parts;  // (S), (S, K): rows of several, and which in order, padded with `empty`
};

/// Row i has the parts parts_of_rows[i]; part in_place + i is that row itself.
MergeTable make_merge_table(const std::vector<std::vector<int64_t>>& parts_of_rows, int64_t empty,
                            int64_t in_place, at::Device device);

/// How rows of one kind (queries, or keys and values) go from their homes to servers and back. What tasks
/// read on a server are rows numbered through three runs: the rows that this rank is home to, in place; those
/// that arrived from others, by peer; copies of some of both, for tasks whose rows don't stand in one run
/// otherwise. The last two are the *rest*, in one buffer.
struct RowTable {
  int64_t home_rows = 0;
  std::vector<PeerRows> home_peers;    // this rank as home: rows each other server gets from it
  std::vector<PeerRows> server_peers;  // this rank as server: rows it gets from each other home
  int64_t sent_rows = 0, arrived_rows = 0, copied_rows = 0;
  int64_t server_rows = 0;  // distinct rows that tasks read here, as Exchange numbers them
  at::Tensor sent;          // (sent_rows): the home row of each
  at::Tensor copied;        // (copied_rows): the home or arrived row that each is a copy of
  /// Results of copies belong where they were copied from: (·) home rows and rows of the rest, and the rows
  /// of the rest that they come from.
  at::Tensor home_back, home_copies, arrived_back, arrived_copies;
  std::vector<int64_t> copied_server_rows;  // as Exchange numbers them; ascending
  /// Home rows out of what servers return: rows of others as they were sent, then row `empty`, then the home
  /// rows of this rank. A row's parts are in the order of their servers' ranks.
  MergeTable returned;

  int64_t rest_rows() const { return arrived_rows + copied_rows; }
  int64_t rows() const { return home_rows + rest_rows(); }
};

struct RankTables {
  int32_t rank = 0, ranks = 0;
  uint64_t digest = 0;    // of the plan
  int64_t home_rows = 0;  // rows of this rank's token buffers, padding included; 0 for a dedicated server
  RowTable q, kv;
  std::vector<KernelTask> tasks;
  std::vector<KernelTask> local_tasks,
      other_tasks;                             // the same: those whose rows are all at home, and the rest
  std::shared_ptr<const KernelTables> kernel;  // of the tasks; null where the kernel has none, or makes them
  /// Output rows of the tasks: as many as query rows, numbered like them, then those of tasks that share
  /// query rows with an earlier one, then one that is empty.
  int64_t o_rows = 0;
  MergeTable merge_home,
      merge_rest;  // where tasks share query rows; rows of the latter count from the rest's

  /// What this rank is home to stands in the first tensors of a kernel's call, the rest in the second.
  FirstRows first_rows() const { return {home_rows, home_rows, home_rows}; }
};

/// `digest` is plan.digest(), handed in because every rank thread would compute the same. `home_rows` is what
/// the rank's token buffers hold, where that isn't the plan's chunk for ranks with a home and 0 for dedicated
/// servers: at least the rows of its shards.
RankTables make_rank_tables(const Plan& plan, const Exchange& exchange, uint64_t digest, int32_t rank,
                            at::Device device, std::optional<int64_t> home_rows = std::nullopt);

/// The same tables, each index tensor being what `map` makes of it.
RankTables map_indices(const RankTables& tables, const TensorMap& map);

}  // namespace distca
