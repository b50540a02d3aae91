#include "sim/part_work.h"

#include <algorithm>

#include "plan/exchange.h"
#include "plan/traffic.h"

namespace distca {
namespace {

std::vector<double> zeros(int64_t count) {
  return std::vector<double>(static_cast<size_t>(count), 0.0);
}

double task_work(const Task& task, double startup_keys) {
  if (task.q.empty()) return 0;
  const double keys = static_cast<double>(pairs(task)) / static_cast<double>(task.q.size());
  return attention_work(task.q.size(), keys, startup_keys);
}

/// Bytes of a route's rows, by what an exchange sends along it.
struct RouteBytes {
  double q = 0, kv = 0, partial = 0;  // a query row, a key row, a query row whose output is partial
  bool to_server = true;
};

/// Backward: dO with LSE and delta go out and the gradients come back; with `resend`, Q, K and V go out
/// again.
std::array<RouteBytes, kExchangeKinds> route_bytes(const ClusterSetup& setup) {
  const RowBytes rows = row_bytes(device_heads(setup));
  const auto q = static_cast<double>(rows.q), kv = static_cast<double>(rows.kv());
  const auto o = static_cast<double>(rows.o), lse = static_cast<double>(rows.lse);
  return {{{q, kv, 0, true},
           {o, 0, lse, false},
           {o + 2 * lse + (setup.resend ? q : 0), setup.resend ? kv : 0, 0, true},
           {q, kv, 0, false}}};
}

/// Adds up what ranks send and receive. Inside a node and between nodes are links of their own.
void finish(const ClusterSetup& setup, ExchangeWork& work) {
  const int64_t ranks = setup.all_ranks(), per_node = setup.gpus_per_node / setup.tp;
  const auto count = static_cast<size_t>(ranks);
  std::vector<double> sent[2], received[2];
  for (auto* side : {sent, received}) side[0] = side[1] = zeros(ranks);
  for (const ExchangeWork::Flow& flow : work.flows) {
    const bool inter = flow.from / per_node != flow.to / per_node;
    sent[inter][static_cast<size_t>(flow.from)] += flow.bytes;
    received[inter][static_cast<size_t>(flow.to)] += flow.bytes;
    work.bytes += flow.bytes;
    work.latency = std::max(work.latency, (inter ? setup.profile.inter : setup.profile.intra).latency);
  }
  const double rates[2] = {setup.profile.intra.bytes_per_second, setup.profile.inter.bytes_per_second};
  work.send_s = work.receive_s = zeros(ranks);
  for (size_t r = 0; r < count; ++r) {
    work.send_s[r] = std::max(sent[0][r] / rates[0], sent[1][r] / rates[1]);
    work.receive_s[r] = std::max(received[0][r] / rates[0], received[1][r] / rates[1]);
  }
}

}  // namespace

PartWork disaggregated_work(const ClusterSetup& setup, const Plan& plan) {
  PartWork part;
  const int64_t ranks = setup.all_ranks();
  part.tokens = part.attention = part.gathered = part.received_bytes = zeros(ranks);
  for (const Shard& shard : plan.layout.shards) {
    part.tokens[static_cast<size_t>(shard.home)] += static_cast<double>(shard.tokens.size());
  }
  for (const Task& task : plan.tasks) {
    part.attention[static_cast<size_t>(task.server)] +=
        task_work(task, setup.profile.fit.attention_startup_keys);
  }
  const Exchange exchange = make_exchange(plan);
  const std::vector<int64_t> partial = partial_rows(plan, exchange);
  const auto bytes = route_bytes(setup);
  for (size_t i = 0; i < exchange.routes.size(); ++i) {
    const Route& route = exchange.routes[i];
    if (route.home == route.server) continue;
    const auto q = static_cast<double>(route.q_rows), kv = static_cast<double>(route.kv_rows);
    for (size_t kind = 0; kind < kExchangeKinds; ++kind) {
      const RouteBytes& row = bytes[kind];
      const double all = q * row.q + kv * row.kv + static_cast<double>(partial[i]) * row.partial;
      const auto [from, to] =
          row.to_server ? std::pair(route.home, route.server) : std::pair(route.server, route.home);
      part.exchanges[kind].flows.push_back({from, to, all});
      if (kind == 0) part.received_bytes[static_cast<size_t>(route.server)] += all;
    }
  }
  for (ExchangeWork& work : part.exchanges) finish(setup, work);
  return part;
}

PartWork at_home_work(const ClusterSetup& setup, const PolicyChoice& choice, const Plan& plan,
                      int64_t first) {
  PartWork part;
  const int64_t ranks = setup.ranks();
  part.tokens = part.attention = part.gathered = part.received_bytes = zeros(ranks);
  const auto index = [&](int32_t rank) { return rank < first || rank >= first + ranks ? -1 : rank - first; };
  for (const Shard& shard : plan.layout.shards) {
    const int64_t r = index(shard.home);
    if (r >= 0) part.tokens[static_cast<size_t>(r)] += static_cast<double>(shard.tokens.size());
    if (r >= 0 && choice.policy == Policy::kNone && shard.row == 0) {
      part.gathered[static_cast<size_t>(r)] = static_cast<double>(shard.tokens.begin);
    }
  }
  for (const Task& task : plan.tasks) {
    const int64_t r = index(task.server);
    if (r >= 0) {
      part.attention[static_cast<size_t>(r)] += task_work(task, setup.profile.fit.attention_startup_keys);
    }
  }
  for (int64_t group = 0; group < ranks && choice.policy != Policy::kNone; group += choice.cp) {
    double tokens = 0;
    for (int64_t r = group; r < group + choice.cp; ++r) tokens += part.tokens[static_cast<size_t>(r)];
    for (int64_t r = group; r < group + choice.cp; ++r) {
      part.gathered[static_cast<size_t>(r)] = tokens - part.tokens[static_cast<size_t>(r)];
    }
  }
  const double kv = static_cast<double>(row_bytes(device_heads(setup)).kv());
  for (size_t r = 0; r < part.gathered.size(); ++r) part.received_bytes[r] = part.gathered[r] * kv;
  return part;
}

}  // namespace distca
