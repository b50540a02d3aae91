#include "plan/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "plan/schedule.h"
#include "plan/search.h"
#include "plan/transport.h"

namespace distca {
namespace {

constexpr int kRepairRounds = 16;

void set_flows(Schedule& schedule, Donor& donor, const std::vector<Room>& flows) {
  for (const Room& flow : flows) {
    donor.flows.push_back({flow.server, schedule.pairs_of_load(donor.rank, flow.load)});
  }
  schedule.carve(donor, donor.carving);
  schedule.apply(donor);
}

/// Transport: donors by surplus, the largest first.
void assign_all(Schedule& schedule) {
  std::vector<Room> surplus, rooms, flows;
  for (int32_t i = 0; i < static_cast<int32_t>(schedule.servers().size()); ++i) {
    const int64_t over = schedule.excess(i, schedule.margin());
    if (over > 0) surplus.push_back({over, i});
    if (over < 0) rooms.push_back({-over, i});
  }
  std::sort(surplus.begin(), surplus.end(), [](const Room& a, const Room& b) {
    return a.load != b.load ? a.load > b.load : a.server < b.server;
  });
  Rooms recipients(std::move(rooms));
  for (const Room& donor : surplus) {
    flows.clear();
    recipients.take(donor.load, flows);
    set_flows(schedule, schedule.donor_of_rank(donor.server), flows);
  }
}

class Repair {
 public:
  explicit Repair(Schedule& schedule) : schedule_(schedule) {}

  void run() {
    for (int round = 0; round < kRepairRounds; ++round) {
      bool changed = false;
      for (int32_t i = 0; i < static_cast<int32_t>(schedule_.servers().size()); ++i) {
        if (schedule_.excess(i, 0) > 0) changed |= relieve(i);
      }
      if (!changed) return;
    }
  }

 private:
  int64_t room_of(int32_t server) const { return -schedule_.excess(server, schedule_.margin() / 2); }

  int32_t roomiest(int32_t except) const {
    int32_t best = -1;
    int64_t most = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(schedule_.servers().size()); ++i) {
      if (i == except || room_of(i) <= most) continue;
      most = room_of(i);
      best = i;
    }
    return best;
  }

  bool relieve(int32_t server) {
    const int64_t over = schedule_.excess(server, schedule_.margin());
    const int32_t to = roomiest(server);
    if (!schedule_.server(server).from.empty()) return take_back(server, over, to);
    if (to < 0 || server >= schedule_.layout().ranks) return false;
    Donor& donor = schedule_.donor_of_rank(server);
    schedule_.withdraw(donor);
    add_flow(donor, to, schedule_.pairs_of_load(server, over));
    return cut(donor);
  }

  /// The last donor that gave to `server` gives less to it, and to another what it can't keep.
  bool take_back(int32_t server, int64_t over, int32_t to) {
    Donor& donor = schedule_.donor(schedule_.server(server).from.back());
    schedule_.withdraw(donor);
    const auto flow =
        std::find_if(donor.flows.begin(), donor.flows.end(), [&](const Flow& f) { return f.to == server; });
    const int64_t moved = std::min(schedule_.pairs_of_load(donor.rank, over) + 1, flow->pairs);
    flow->pairs -= moved;
    if (flow->pairs == 0) donor.flows.erase(flow);
    if (to >= 0 && to != donor.rank) add_flow(donor, to, moved);
    return cut(donor);
  }

  void add_flow(Donor& donor, int32_t to, int64_t pairs) {
    for (Flow& flow : donor.flows) {
      if (flow.to != to && room_of(flow.to) < flow.pairs + pairs) continue;
      flow.pairs += pairs;
      return;
    }
    donor.flows.push_back({to, pairs});
  }

  bool cut(Donor& donor) {
    schedule_.carve(donor, donor.carving);
    schedule_.apply(donor);
    return true;
  }

  Schedule& schedule_;
};

void report_shortfalls(const Schedule& schedule, PlanResult& result) {
  for (int32_t i = 0; i < result.plan.servers; ++i) {
    const int64_t over = schedule.excess(i, 0);
    if (over <= 0) continue;
    result.within_tolerance = false;
    result.shortfalls.push_back(format("server {} computes {} more than its share", i, over));
  }
}

}  // namespace

PlanResult schedule(const Layout& layout, const PlanOptions& options) {
  Schedule schedule(layout, options);
  assign_all(schedule);
  Repair(schedule).run();
  PlanResult result;
  const SearchCost cost = search(schedule, options.search_moves);
  result.cost_before_search = cost.before;
  result.cost = cost.after;
  result.plan = {layout, layout.ranks + options.dedicated, schedule.tasks()};
  result.plan.sort_tasks();
  report_shortfalls(schedule, result);
  return result;
}

}  // namespace distca
