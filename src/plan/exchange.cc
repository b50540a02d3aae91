#include "plan/exchange.h"

#include <numeric>

#include "base/check.h"

namespace distca {
namespace {

/// Consecutive positions of one document that stand in consecutive rows of a server's buffer.
struct HeldSpan {
  int32_t doc;
  Span positions;
  int64_t row;
};

/// A run that a server receives, before runs are grouped by home.
struct Piece {
  int32_t home;
  RowRun run;
};

/// The shards of a layout, found by document and position.
class ShardIndex {
 public:
  explicit ShardIndex(const Layout& layout)
      : shards_(layout.shards), first_(layout.doc_lengths.size() + 1, 0) {
    for (const Shard& shard : shards_) ++first_[static_cast<size_t>(shard.doc) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
  }

  /// Adds to `pieces` where the rows of `held` come from, in order.
  void add_pieces(const HeldSpan& held, std::vector<Piece>& pieces) const {
    const auto begin = shards_.begin() + first_[static_cast<size_t>(held.doc)];
    const auto end = shards_.begin() + first_[static_cast<size_t>(held.doc) + 1];
    auto shard = std::upper_bound(begin, end, held.positions.begin,
                                  [](int64_t p, const Shard& s) { return p < s.tokens.begin; }) -
                 1;
    for (int64_t at = held.positions.begin; at < held.positions.end; ++shard) {
      const int64_t count = std::min(held.positions.end, shard->tokens.end) - at;
      pieces.push_back(
          {shard->home,
           {shard->row + at - shard->tokens.begin, held.row + at - held.positions.begin, count}});
      at += count;
    }
  }

 private:
  const std::vector<Shard>& shards_;
  std::vector<int64_t> first_;
};

/// Unites spans of one document, given by ascending begin, into `held`, and counts their rows.
void unite(int32_t doc, Span span, std::vector<HeldSpan>& held, int64_t& rows) {
  if (!held.empty() && held.back().doc == doc && span.begin <= held.back().positions.end) {
    const int64_t more = std::max<int64_t>(0, span.end - held.back().positions.end);
    held.back().positions.end += more;
    rows += more;
    return;
  }
  held.push_back({doc, span, rows});
  rows += span.size();
}

int64_t row_of(const std::vector<HeldSpan>& held, int32_t doc, int64_t position) {
  const auto after = std::upper_bound(
      held.begin(), held.end(), std::pair(doc, position),
      [](const auto& key, const HeldSpan& h) { return key < std::pair(h.doc, h.positions.begin); });
  const HeldSpan& at = *(after - 1);
  return at.row + position - at.positions.begin;
}

/// Builds one server's rows and the routes to it, with buffers that are reused from server to server.
class ServerTables {
 public:
  explicit ServerTables(const Layout& layout)
      : index_(layout), route_of_home_(static_cast<size_t>(layout.ranks), -1) {}

  ServerRows build(std::span<const Task> tasks) {
    ServerRows rows;
    q_.clear();
    kv_.clear();
    for (size_t i = 0; i < tasks.size();) {
      const int32_t doc = tasks[i].doc;
      keys_.clear();
      for (; i < tasks.size() && tasks[i].doc == doc; ++i) {
        unite(doc, tasks[i].q, q_, rows.q_rows);
        keys_.push_back(tasks[i].kv);
      }
      std::sort(keys_.begin(), keys_.end(), [](Span a, Span b) { return a.begin < b.begin; });
      for (const Span span : keys_) unite(doc, span, kv_, rows.kv_rows);
    }
    rows.tasks.reserve(tasks.size());
    for (const Task& task : tasks) {
      rows.tasks.push_back({row_of(q_, task.doc, task.q.begin), task.q.size(), task.q.begin,
                            row_of(kv_, task.doc, task.kv.begin), task.kv.size(), task.kv.begin,
                            rows.o_rows});
      rows.o_rows += task.q.size();
    }
    return rows;
  }

  /// Adds the routes to `server` for the rows of the last `build`, in no order of homes.
  void add_routes(int32_t server, std::vector<Route>& routes) {
    const size_t first = routes.size();
    for (const bool is_q : {true, false}) {
      pieces_.clear();
      for (const HeldSpan& held : is_q ? q_ : kv_) index_.add_pieces(held, pieces_);
      for (const Piece& piece : pieces_) {
        int64_t& at = route_of_home_[static_cast<size_t>(piece.home)];
        if (at < 0) {
          at = static_cast<int64_t>(routes.size());
          routes.push_back({piece.home, server, {}, {}, 0, 0});
        }
        Route& route = routes[static_cast<size_t>(at)];
        append(is_q ? route.q : route.kv, piece.run);
        (is_q ? route.q_rows : route.kv_rows) += piece.run.count;
      }
    }
    for (size_t i = first; i < routes.size(); ++i) route_of_home_[static_cast<size_t>(routes[i].home)] = -1;
  }

 private:
  static void append(std::vector<RowRun>& runs, const RowRun& run) {
    if (!runs.empty()) {
      RowRun& last = runs.back();
      if (last.home_row + last.count == run.home_row && last.server_row + last.count == run.server_row) {
        last.count += run.count;
        return;
      }
    }
    runs.push_back(run);
  }

  ShardIndex index_;
  std::vector<int64_t> route_of_home_;
  std::vector<HeldSpan> q_, kv_;
  std::vector<Span> keys_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::span<const Route> Exchange::from_home(int32_t rank) const {
  const auto [begin, end] = std::equal_range(routes.begin(), routes.end(), Route{rank, 0, {}, {}, 0, 0},
                                             [](const Route& a, const Route& b) { return a.home < b.home; });
  return {begin, end};
}

std::vector<const Route*> Exchange::to_server(int32_t rank) const {
  std::vector<const Route*> to;
  for (const Route& route : routes) {
    if (route.server == rank) to.push_back(&route);
  }
  return to;
}

Exchange make_exchange(const Plan& plan) {
  Exchange exchange;
  exchange.servers.reserve(static_cast<size_t>(plan.servers));
  ServerTables tables(plan.layout);
  std::vector<Route> by_server;
  const Task* task = plan.tasks.data();
  const Task* const end = task + plan.tasks.size();
  for (int32_t server = 0; server < plan.servers; ++server) {
    const Task* const first = task;
    while (task != end && task->server == server) ++task;
    exchange.servers.push_back(tables.build({first, task}));
    tables.add_routes(server, by_server);
  }
  DISTCA_CHECK(task == end, "tasks of a plan go by server, and servers are numbered up to {}", plan.servers);
  std::vector<size_t> first_of_home(static_cast<size_t>(plan.layout.ranks) + 1, 0);
  for (const Route& route : by_server) ++first_of_home[static_cast<size_t>(route.home) + 1];
  std::partial_sum(first_of_home.begin(), first_of_home.end(), first_of_home.begin());
  exchange.routes.resize(by_server.size());
  for (Route& route : by_server)
    exchange.routes[first_of_home[static_cast<size_t>(route.home)]++] = std::move(route);
  return exchange;
}

}  // namespace distca
