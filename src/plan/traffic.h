// What a plan ships, to the byte: forward, one layer. Per (document, destination other than home) Q rows go
// out once, K and V rows once (intervals united), O rows come back once, and a log-sum-exp for each row whose
// output is partial because several servers hold its keys.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/exchange.h"
#include "plan/plan.h"
#include "plan/row_bytes.h"

namespace distca {

struct RankTraffic {
  int64_t send = 0, receive = 0;  // bytes, dispatch and collect together
};

struct Traffic {
  int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;  // bytes, summed over ranks
  std::vector<RankTraffic> ranks;               // one a server

  int64_t total() const { return q + k + v + o + lse; }
  int64_t max_send() const;
  int64_t max_receive() const;
};

/// `exchange` must be that of `plan`.
Traffic planned_traffic(const Plan& plan, const Exchange& exchange, const RowBytes& bytes);

/// Rows on each route of `exchange` whose output is partial: keys that the row sees are computed elsewhere
/// too.
std::vector<int64_t> partial_rows(const Plan& plan, const Exchange& exchange);

/// K/V rows each server holds during a layer: those it is home to and those it receives.
std::vector<int64_t> held_kv_rows(const Plan& plan, const Exchange& exchange);

/// Each server's load, summed over its tasks.
std::vector<int64_t> pairs_of_servers(const Plan& plan);
std::vector<int64_t> padded_pairs_of_servers(const Plan& plan);

}  // namespace distca
