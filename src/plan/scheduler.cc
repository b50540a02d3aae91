#include "plan/scheduler.h"

#include <numeric>
#include <optional>

#include "base/check.h"
#include "plan/carve.h"
#include "plan/finish.h"
#include "plan/random_plan.h"
#include "plan/transport.h"

namespace distca {
namespace {

/// Share of what the tolerance allows that is left unused, so that the grid's rounding needs no repair.
constexpr double kMargin = 0.04;

class Scheduler {
 public:
  Scheduler(const Layout& layout, const PlanOptions& options)
      : layout_(layout), options_(options), servers_(static_cast<size_t>(layout.ranks + options.dedicated)) {
    measure();
    carver_.emplace(layout_, options_.bytes, margin_ / 2);
  }

  PlanResult run() {
    assign_all();
    repair();
    return result();
  }

 private:
  struct Server {
    int64_t load = 0, raw = 0;  // of what it computes now
    int64_t capacity = 0, raw_capacity = 0;
    int64_t send = 0, receive = 0;
    int64_t keys = 0;  // K/V rows it holds
    int32_t donor = -1;
    std::vector<int32_t> from;  // donors that give to it
  };

  struct Donor {
    int32_t rank = 0;
    std::vector<Flow> flows;
    Carving carving;
  };

  // Loads, capacities.
  void measure() {
    int64_t total = 0, raw_total = 0;
    for (const Shard& shard : layout_.shards) {
      const Task task{shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home};
      Server& server = servers_[static_cast<size_t>(shard.home)];
      server.load += padded_pairs(task);
      server.raw += pairs(task);
      server.keys += shard.tokens.size();
    }
    for (const Server& server : servers_) {
      total += server.load;
      raw_total += server.raw;
    }
    const auto count = static_cast<int32_t>(servers_.size());
    const FinishTimes times = finish_times(total, count, options_.speeds, options_.ci, options_.tolerance);
    const FinishTimes raw = finish_times(raw_total, count, options_.speeds, {}, options_.tolerance);
    const bool raw_counts = options_.ci.empty() && options_.speeds.empty() && options_.tolerance >= 0.01;
    margin_ = static_cast<int64_t>(times.best * options_.tolerance * kMargin);
    for (size_t i = 0; i < servers_.size(); ++i) {
      servers_[i].capacity = times.capacity[i];
      servers_[i].raw_capacity = raw_counts ? raw.capacity[i] : INT64_MAX;
    }
  }

  /// How far a server is above its capacity less `margin`; negative: the room it has.
  static int64_t excess(const Server& server, int64_t margin) {
    const int64_t by_load = server.load - std::max<int64_t>(0, server.capacity - margin);
    return server.raw_capacity == INT64_MAX
               ? by_load
               : std::max(by_load, server.raw - std::max<int64_t>(0, server.raw_capacity - margin));
  }

  void assign_all() {
    std::vector<Room> surplus, rooms;
    for (size_t i = 0; i < servers_.size(); ++i) {
      const int64_t over = excess(servers_[i], margin_);
      if (over > 0) surplus.push_back({over, static_cast<int32_t>(i)});
      if (over < 0) rooms.push_back({-over, static_cast<int32_t>(i)});
    }
    std::sort(surplus.begin(), surplus.end(), [](const Room& a, const Room& b) {
      return a.load != b.load ? a.load > b.load : a.server < b.server;
    });
    Rooms recipients(std::move(rooms));
    std::vector<Room> flows;
    for (const Room& donor : surplus) {
      flows.clear();
      recipients.take(donor.load, flows);
      Donor& added = donor_of(donor.server);
      for (const Room& flow : flows) added.flows.push_back({flow.server, flow.load});
      cut(added);
    }
  }

  Donor& donor_of(int32_t rank) {
    int32_t& index = servers_[static_cast<size_t>(rank)].donor;
    if (index < 0) {
      index = static_cast<int32_t>(donors_.size());
      donors_.emplace_back().rank = rank;
    }
    return donors_[static_cast<size_t>(index)];
  }

  void cut(Donor& donor) {
    const bool everything = servers_[static_cast<size_t>(donor.rank)].capacity == 0;
    for (Flow& flow : donor.flows) {
      if (options_.kv_row_limit > 0) {
        flow.max_keys = options_.kv_row_limit - servers_[static_cast<size_t>(flow.to)].keys;
      }
    }
    carver_->carve(donor.rank, donor.flows, everything, donor.carving);
    count(donor, 1);
  }

  /// Adds (sign 1) or takes away (-1) what a donor's carving does to loads and traffic.
  void count(const Donor& donor, int64_t sign) {
    Server& home = servers_[static_cast<size_t>(donor.rank)];
    const auto regions = carver_->regions_of(donor.rank);
    for (size_t i = 0; i < donor.carving.touched; ++i) count_region(home, regions[i], -sign);
    for (const Region& region : donor.carving.rest) count_region(home, region, sign);
    for (const Piece& piece : donor.carving.pieces) {
      Server& to = servers_[static_cast<size_t>(piece.to)];
      to.load += sign * padded_pairs(piece);
      to.raw += sign * pairs(piece);
      if (!piece.strip) {
        const int64_t q = sign * piece.rows() * options_.bytes.q;
        const int64_t o =
            sign * piece.rows() * (options_.bytes.o + (piece.partial() ? options_.bytes.lse : 0));
        home.send += q;
        to.receive += q;
        home.receive += o;
        to.send += o;
      }
      count_keys(piece, sign);
    }
    for (const Flow& flow : donor.flows) {
      std::vector<int32_t>& from = servers_[static_cast<size_t>(flow.to)].from;
      const int32_t index = home.donor;
      if (sign > 0) {
        from.push_back(index);
      } else if (const auto at = std::find(from.begin(), from.end(), index); at != from.end()) {
        from.erase(at);
      }
    }
  }

  static void count_region(Server& server, const Region& region, int64_t sign) {
    const Task task{0, {region.top, region.bottom}, {region.left, region.bottom}, 0};
    server.load += sign * padded_pairs(task);
    server.raw += sign * pairs(task);
  }

  void count_keys(const Piece& piece, int64_t sign) {
    const int32_t doc = layout_.shards[static_cast<size_t>(piece.shard)].doc;
    auto shard = layout_.shards.begin() + piece.shard;
    while (shard->tokens.begin > piece.left) --shard;
    for (; shard != layout_.shards.end() && shard->doc == doc && shard->tokens.begin < piece.right; ++shard) {
      if (shard->home == piece.to) continue;
      const int64_t keys =
          std::min(piece.right, shard->tokens.end) - std::max(piece.left, shard->tokens.begin);
      const int64_t bytes = sign * keys * options_.bytes.kv();
      servers_[static_cast<size_t>(shard->home)].send += bytes;
      Server& to = servers_[static_cast<size_t>(piece.to)];
      to.receive += bytes;
      to.keys += sign * keys;
    }
  }

  // Repair.
  void repair() {
    for (int round = 0; round < 16; ++round) {
      bool changed = false;
      for (size_t i = 0; i < servers_.size(); ++i) {
        if (excess(servers_[i], 0) > 0) changed |= relieve(static_cast<int32_t>(i));
      }
      if (!changed) return;
    }
  }

  int32_t roomiest(int32_t except) const {
    int32_t best = -1;
    int64_t most = 0;
    for (size_t i = 0; i < servers_.size(); ++i) {
      const int64_t room = -excess(servers_[i], margin_ / 2);
      if (room > most && static_cast<int32_t>(i) != except) {
        most = room;
        best = static_cast<int32_t>(i);
      }
    }
    return best;
  }

  bool relieve(int32_t server) {
    const int64_t over = excess(servers_[static_cast<size_t>(server)], margin_);
    const std::vector<int32_t>& from = servers_[static_cast<size_t>(server)].from;
    const int32_t to = roomiest(server);
    if (from.empty()) {
      if (to < 0 || server >= layout_.ranks) return false;
      Donor& donor = donor_of(server);
      if (donor.carving.touched > 0) count(donor, -1);
      add_flow(donor, to, over);
      cut(donor);
      return true;
    }
    Donor& donor = donors_[static_cast<size_t>(from.back())];
    count(donor, -1);
    const auto flow =
        std::find_if(donor.flows.begin(), donor.flows.end(), [&](const Flow& f) { return f.to == server; });
    const int64_t moved = std::min(over, flow->pairs);
    flow->pairs -= moved;
    if (flow->pairs == 0) donor.flows.erase(flow);
    if (excess(servers_[static_cast<size_t>(donor.rank)], 0) > 0 && to >= 0) add_flow(donor, to, moved);
    cut(donor);
    return true;
  }

  void add_flow(Donor& donor, int32_t to, int64_t pairs) {
    for (Flow& flow : donor.flows) {
      const Server& server = servers_[static_cast<size_t>(flow.to)];
      if (flow.to == to || -excess(server, margin_ / 2) >= flow.pairs + pairs) {
        flow.pairs += pairs;
        return;
      }
    }
    donor.flows.push_back({to, pairs});
  }

  // Result.
  PlanResult result() {
    PlanResult result;
    Plan& plan = result.plan;
    plan.layout = layout_;
    plan.servers = static_cast<int32_t>(servers_.size());
    plan.tasks.reserve(layout_.shards.size() + 8 * donors_.size());
    for (int32_t rank = 0; rank < layout_.ranks; ++rank) {
      const int32_t donor = servers_[static_cast<size_t>(rank)].donor;
      size_t touched = 0;
      if (donor >= 0) {
        const Carving& carving = donors_[static_cast<size_t>(donor)].carving;
        touched = carving.touched;
        for (const Piece& piece : carving.pieces) add_tasks(piece, doc_of(piece.shard), plan.tasks);
        for (const Region& region : carving.rest) add_region(region, rank, plan.tasks);
      }
      const auto regions = carver_->regions_of(rank);
      for (size_t i = touched; i < regions.size(); ++i) add_region(regions[i], rank, plan.tasks);
    }
    plan.sort_tasks();
    report(result);
    return result;
  }

  int32_t doc_of(int32_t shard) const { return layout_.shards[static_cast<size_t>(shard)].doc; }

  void add_region(const Region& region, int32_t rank, std::vector<Task>& tasks) const {
    tasks.push_back({doc_of(region.shard), {region.top, region.bottom}, {region.left, region.bottom}, rank});
  }

  void report(PlanResult& result) const {
    for (size_t i = 0; i < servers_.size(); ++i) {
      const int64_t over = excess(servers_[i], 0);
      if (over <= 0) continue;
      result.within_tolerance = false;
      result.shortfalls.push_back(
          format("server {} computes {} pairs more than its {}", i, over, servers_[i].capacity));
    }
  }

  const Layout& layout_;
  const PlanOptions& options_;
  std::vector<Server> servers_;
  int64_t margin_ = 0;
  std::optional<Carver> carver_;
  std::vector<Donor> donors_;
};

}  // namespace

PlanResult schedule(const Layout& layout, const PlanOptions& options) {
  return Scheduler(layout, options).run();
}

}  // namespace distca
