#include "plan/traffic.h"

#include <numeric>

namespace distca {
namespace {

/// Walks down each document that several servers compute, and calls visit(home, server, rows) for each run of
/// query rows and each of the servers among which its keys are split.
template <typename Visit>
class PartialRowWalk {
 public:
  PartialRowWalk(const Plan& plan, Visit visit) : plan_(plan), visit_(visit) {
    order_.resize(plan.tasks.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](uint32_t a, uint32_t b) { return plan.tasks[a].doc < plan.tasks[b].doc; });
  }

  void run() {
    auto shard = plan_.layout.shards.begin();
    for (auto begin = order_.begin(); begin != order_.end();) {
      const int32_t doc = plan_.tasks[*begin].doc;
      auto end = begin;
      bool split = false;
      for (; end != order_.end() && plan_.tasks[*end].doc == doc; ++end) {
        split |= plan_.tasks[*end].server != plan_.tasks[*begin].server;
      }
      while (shard->doc < doc) ++shard;
      if (split) walk({begin, end}, shard);
      begin = end;
    }
  }

 private:
  void walk(std::span<const uint32_t> tasks, std::vector<Shard>::const_iterator shard) {
    edges_.clear();
    for (const uint32_t i : tasks) {
      edges_.push_back({plan_.tasks[i].q.begin, 1, plan_.tasks[i].server});
      edges_.push_back({plan_.tasks[i].q.end, -1, plan_.tasks[i].server});
    }
    std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) { return a.row < b.row; });
    active_.clear();
    for (size_t i = 0; i < edges_.size(); ++i) {
      if (i > 0 && active_.size() > 1) visit_rows({edges_[i - 1].row, edges_[i].row}, shard);
      count(edges_[i]);
    }
  }

  void visit_rows(Span rows, std::vector<Shard>::const_iterator& shard) {
    while (rows.begin < rows.end) {
      while (shard->tokens.end <= rows.begin) ++shard;
      const int64_t end = std::min(rows.end, shard->tokens.end);
      for (const auto& [server, tasks] : active_) visit_(shard->home, server, end - rows.begin);
      rows.begin = end;
    }
  }

  struct Edge {
    int64_t row;
    int32_t change, server;
  };

  void count(const Edge& edge) {
    for (auto at = active_.begin(); at != active_.end(); ++at) {
      if (at->first != edge.server) continue;
      at->second += edge.change;
      if (at->second == 0) active_.erase(at);
      return;
    }
    active_.emplace_back(edge.server, edge.change);
  }

  const Plan& plan_;
  Visit visit_;
  std::vector<uint32_t> order_;
  std::vector<Edge> edges_;
  std::vector<std::pair<int32_t, int32_t>> active_;  // server, its tasks on the current row
};

template <typename Load>
std::vector<int64_t> loads(const Plan& plan, Load load) {
  std::vector<int64_t> loads(static_cast<size_t>(plan.servers), 0);
  for (const Task& task : plan.tasks) loads[static_cast<size_t>(task.server)] += load(task);
  return loads;
}

}  // namespace

int64_t Traffic::max_send() const {
  int64_t most = 0;
  for (const RankTraffic& rank : ranks) most = std::max(most, rank.send);
  return most;
}

int64_t Traffic::max_receive() const {
  int64_t most = 0;
  for (const RankTraffic& rank : ranks) most = std::max(most, rank.receive);
  return most;
}

std::vector<int64_t> partial_rows(const Plan& plan, const Exchange& exchange) {
  std::vector<int64_t> rows(exchange.routes.size(), 0);
  const auto visit = [&](int32_t home, int32_t server, int64_t count) {
    const auto at = std::lower_bound(
        exchange.routes.begin(), exchange.routes.end(), std::pair(home, server),
        [](const Route& route, const auto& key) { return std::pair(route.home, route.server) < key; });
    rows[static_cast<size_t>(at - exchange.routes.begin())] += count;
  };
  PartialRowWalk(plan, visit).run();
  return rows;
}

Traffic planned_traffic(const Plan& plan, const Exchange& exchange, const RowBytes& bytes) {
  Traffic traffic;
  traffic.ranks.resize(static_cast<size_t>(plan.servers));
  const std::vector<int64_t> partial = partial_rows(plan, exchange);
  for (size_t i = 0; i < exchange.routes.size(); ++i) {
    const Route& route = exchange.routes[i];
    if (route.home == route.server) continue;
    const int64_t out = route.q_rows * bytes.q + route.kv_rows * bytes.kv();
    const int64_t back = route.q_rows * bytes.o + partial[i] * bytes.lse;
    traffic.q += route.q_rows * bytes.q;
    traffic.k += route.kv_rows * bytes.k;
    traffic.v += route.kv_rows * bytes.v;
    traffic.o += route.q_rows * bytes.o;
    traffic.lse += partial[i] * bytes.lse;
    RankTraffic& home = traffic.ranks[static_cast<size_t>(route.home)];
    RankTraffic& server = traffic.ranks[static_cast<size_t>(route.server)];
    home.send += out;
    home.receive += back;
    server.send += back;
    server.receive += out;
  }
  return traffic;
}

std::vector<int64_t> held_kv_rows(const Plan& plan, const Exchange& exchange) {
  std::vector<int64_t> rows = plan.layout.tokens_of_ranks();
  rows.resize(static_cast<size_t>(plan.servers), 0);
  for (const Route& route : exchange.routes) {
    if (route.home != route.server) rows[static_cast<size_t>(route.server)] += route.kv_rows;
  }
  return rows;
}

std::vector<int64_t> pairs_of_servers(const Plan& plan) {
  return loads(plan, [](const Task& task) { return pairs(task); });
}

std::vector<int64_t> padded_pairs_of_servers(const Plan& plan) {
  return loads(plan, [](const Task& task) { return padded_pairs(task); });
}

}  // namespace distca
