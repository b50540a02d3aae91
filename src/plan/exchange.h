// Exchange tables: which rows travel between which ranks so that every server holds what its tasks read. One
// table serves all four exchanges of a layer: dispatch sends Q, K, V along it, collect brings O and LSE back
// along its query rows, and backward mirrors both (dO, delta, LSE out along the query rows; dQ, dK, dV home).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace distca {

/// `count` consecutive rows: from `home_row` of the home's token buffer to `server_row` of the server's
/// buffer.
struct RowRun {
  int64_t home_row = 0, server_row = 0, count = 0;

  friend bool operator==(const RowRun&, const RowRun&) = default;
};

/// All rows between one home and one server. home == server is a local copy and costs no bytes.
struct Route {
  int32_t home = 0, server = 0;
  std::vector<RowRun> q, kv;  // by server_row; maximal runs
  int64_t q_rows = 0, kv_rows = 0;

  friend bool operator==(const Route&, const Route&) = default;
};

/// A task as rows of its server's buffers. Query i stands at position q_pos + i and key j at kv_pos + j of
/// one document. Output rows are numbered apart from query rows: tasks that share query rows (split keys)
/// write partial outputs that are merged afterwards.
struct RowTask {
  int64_t q_row = 0, q_len = 0, q_pos = 0;
  int64_t kv_row = 0, kv_len = 0, kv_pos = 0;
  int64_t o_row = 0;

  friend bool operator==(const RowTask&, const RowTask&) = default;
};

/// What a server holds. Its query buffer has one row for each distinct (doc, query position) of its tasks,
/// its key buffer one for each distinct (doc, key position), both ordered by (doc, position).
struct ServerRows {
  int64_t q_rows = 0, kv_rows = 0;
  int64_t o_rows = 0;          // output rows of all its tasks; more than q_rows where it computes split keys
  std::vector<RowTask> tasks;  // in execution order
};

struct Exchange {
  std::vector<Route> routes;        // by (home, server); only those with rows
  std::vector<ServerRows> servers;  // one per server of the plan

  std::span<const Route> from_home(int32_t rank) const;
  /// By home.
  std::vector<const Route*> to_server(int32_t rank) const;
};

/// Tables for a valid plan. Throws Error when its tasks are out of order.
Exchange make_exchange(const Plan& plan);

}  // namespace distca
