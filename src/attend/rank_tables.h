// What one rank needs to know of a plan, as index tensors: which of its rows go to whom, where arrived rows
// belong, and which partial outputs merge into which row. Made once per plan and rank, used by every layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernel/attention.h"
#include "plan/exchange.h"

namespace distca {

/// A run of rows in a buffer that is ordered by peer.
struct PeerRows {
  int32_t peer = 0;
  int64_t offset = 0, rows = 0;
};

/// Which partial rows make up each merged row. Row `empty` of the partials stands for none.
struct MergeTable {
  int64_t rows = 0, empty = 0;
  bool identity = false;   // row i is part i: nothing to do
  at::Tensor first;        // (rows): the first part of each row, or `empty` where it has none
  at::Tensor split_rows;   // (S): rows of more than one part
  at::Tensor split_parts;  // (S, K): their parts in order, padded with `empty`
};

/// How rows of one kind (queries, or keys and values) go from their homes to servers and back. Buffers of
/// rows under way hold the rows of other ranks by peer, then this rank's own, which never leave it.
struct RowTable {
  int64_t home_rows = 0, server_rows = 0;
  std::vector<PeerRows> home_peers;    // this rank as home: rows each server gets from it, itself last
  std::vector<PeerRows> server_peers;  // this rank as server: rows it gets from each home, itself last
  int64_t sent_rows = 0;               // as home, to other ranks; own rows follow them
  int64_t received_rows = 0;           // as server, from other ranks; own rows follow them
  at::Tensor home_index;               // (rows served by anyone): the home row of each
  at::Tensor server_source;            // (server_rows): among the arrived rows of others, then all home rows
  at::Tensor arrived_index;            // (arrived rows, own ones last): the server row of each
  /// Home rows out of what servers return: rows of others by peer, then row `empty`, then all server rows of
  /// this rank. A row's parts are in the order of their servers' ranks.
  MergeTable returned;

  int64_t served_rows() const { return home_index.defined() ? home_index.size(0) : 0; }
};

MergeTable make_merge_table(int64_t rows, int64_t empty,
                            const std::vector<std::vector<int64_t>>& parts_of_rows, at::Device device);

struct RankTables {
  int32_t rank = 0, ranks = 0;
  uint64_t digest = 0;    // of the plan
  int64_t home_rows = 0;  // rows of this rank's token buffers, padding included; 0 for a dedicated server
  RowTable q, kv;
  std::vector<KernelTask> tasks;
  int64_t o_rows = 0;       // output rows of the tasks
  MergeTable server_merge;  // outputs of tasks that share query rows here
};

/// `digest` is plan.digest(), handed in because every rank thread would compute the same. `home_rows` is what
/// the rank's token buffers hold, where that isn't the plan's chunk for ranks with a home and 0 for dedicated
/// servers: at least the rows of its shards.
RankTables make_rank_tables(const Plan& plan, const Exchange& exchange, uint64_t digest, int32_t rank,
                            at::Device device, std::optional<int64_t> home_rows = std::nullopt);

/// The same tables with their index tensors on another device.
RankTables on_device(const RankTables& tables, at::Device device);

}  // namespace distca
