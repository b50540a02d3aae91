#include "plan/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "plan/bound.h"
#include "plan/byte_limit.h"
#include "plan/draft.h"
#include "plan/exchange.h"
#include "plan/finish.h"
#include "plan/kin.h"
#include "plan/level.h"
#include "plan/search.h"
#include "plan/traffic.h"
#include "plan/transport.h"

namespace distca {
namespace {

constexpr int kRepairRounds = 4;

/// Where loads and causal pairs are both at their limit, search finds little: up to so many servers, a second
/// try leaves this share of the tolerance to loads unused, and the cheaper plan is taken.
constexpr int32_t kManyServers = 128;
constexpr double kHeldBack = 0.4;

/// Where a plan ends so far above the lower bound, all bytes come before the busiest server's: plans made for
/// that are tried too, with so many times the moves from so many servers on (fewer find no more by then), and
/// the cheapest is taken if it saves a share that is worth it.
struct Saving {
  double far_above;
  int64_t moves;
  int32_t servers;
  double worthwhile;
};
constexpr Saving kSavings[] = {{1.15, 1, 1, 0.005}, {1.19, 4, 64, 0}};
constexpr double kManyHeldBack[] = {0, kHeldBack, 0.2, 0.1, 0.05};

/// How often a plan above the byte limit is planned again.
constexpr int kLimitAttempts = 4;

/// The least tolerance that flows are cut for: below, the last tiles do the rest. Where a plan of up to so
/// many servers then misses its tolerance by more than `kFarShort`, flows for looser ones are tried.
constexpr double kLeastTolerance = 0.005;
constexpr double kLooserTolerances[] = {0.02, 0.1};
constexpr double kFarShort = 0.002;

void set_flows(Draft& draft, Donor& donor, const std::vector<Room>& flows) {
  for (const Room& flow : flows) {
    donor.flows.push_back({flow.server, draft.pairs_of_load(donor.rank, flow.load)});
  }
  draft.carve(donor, donor.carving);
  draft.apply(donor);
}

/// Transport: donors by surplus, the largest first.
void assign_all(Draft& draft) {
  std::vector<Room> surplus, rooms, flows;
  for (int32_t i = 0; i < static_cast<int32_t>(draft.servers().size()); ++i) {
    const int64_t over = draft.excess(i, draft.margin());
    if (over > 0) surplus.push_back({over, i});
    if (over < 0) rooms.push_back({draft.room(i, draft.margin()), i});
  }
  std::sort(surplus.begin(), surplus.end(), [](const Room& a, const Room& b) {
    return a.load != b.load ? a.load > b.load : a.server < b.server;
  });
  Rooms recipients(std::move(rooms));
  for (const Room& donor : surplus) {
    flows.clear();
    const int64_t left = give_to_kin(draft, donor.server, donor.load, recipients, flows);
    recipients.take(left, flows);
    set_flows(draft, draft.donor_of_rank(donor.server), flows);
  }
}

class Repair {
 public:
  explicit Repair(Draft& draft) : draft_(draft) {}

  void run() {
    for (int round = 0; round < kRepairRounds; ++round) {
      bool changed = false;
      draft_.refresh_capacity();
      for (int32_t i = 0; i < static_cast<int32_t>(draft_.servers().size()); ++i) {
        if (draft_.excess(i, 0) > 0) changed |= relieve(i);
      }
      if (!changed) return;
    }
  }

 private:
  int64_t room_of(int32_t server) const { return draft_.room(server, draft_.margin() / 2); }

  int32_t roomiest(int32_t except) const {
    int32_t best = -1;
    int64_t most = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(draft_.servers().size()); ++i) {
      if (i == except || room_of(i) <= most) continue;
      most = room_of(i);
      best = i;
    }
    return best;
  }

  bool relieve(int32_t server) {
    const int64_t over = draft_.excess(server, draft_.margin());
    const int32_t to = roomiest(server);
    if (!draft_.server(server).from.empty()) return take_back(server, over, to);
    if (to < 0 || server >= draft_.layout().ranks) return false;
    Donor& donor = draft_.donor_of_rank(server);
    draft_.withdraw(donor);
    add_flow(donor, to, draft_.pairs_of_load(server, over), -1);
    return cut(donor);
  }

  /// The last donor that gave to `server` gives less to it, and to another what it can't keep.
  bool take_back(int32_t server, int64_t over, int32_t to) {
    Donor& donor = draft_.donor(draft_.server(server).from.back());
    draft_.withdraw(donor);
    const auto flow =
        std::find_if(donor.flows.begin(), donor.flows.end(), [&](const Flow& f) { return f.to == server; });
    const int64_t moved = std::min(draft_.pairs_of_load(donor.rank, over) + 1, flow->pairs);
    flow->pairs -= moved;
    if (flow->pairs == 0) donor.flows.erase(flow);
    if (to >= 0 && to != donor.rank) add_flow(donor, to, moved, server);
    return cut(donor);
  }

  /// To a recipient that the donor has already, if one has room, but not to `except`; else to `to`.
  void add_flow(Donor& donor, int32_t to, int64_t pairs, int32_t except) {
    for (Flow& flow : donor.flows) {
      if (flow.to == except) continue;
      if (flow.to != to && room_of(flow.to) < flow.pairs + pairs) continue;
      flow.pairs += pairs;
      return;
    }
    donor.flows.push_back({to, pairs});
  }

  bool cut(Donor& donor) {
    draft_.carve(donor, donor.carving);
    draft_.apply(donor);
    return true;
  }

  Draft& draft_;
};

/// Takes back flows that move less load per byte than is asked for.
void drop_poor_flows(Draft& draft, double min_gain) {
  std::vector<Flow> kept;
  for (Donor& donor : draft.donors()) {
    kept.clear();
    for (const Flow& flow : donor.flows) {
      const double gain = draft.load_per_byte(donor, flow.to);
      if (gain >= min_gain) kept.push_back(flow);
    }
    if (kept.size() == donor.flows.size()) continue;
    draft.withdraw(donor);
    donor.flows = kept;
    draft.carve(donor, donor.carving);
    draft.apply(donor);
  }
}

std::string why_short(const Draft& draft, int32_t server, int64_t over) {
  const PlanOptions& options = draft.options();
  if (options.min_gain > 0) return "moving more would gain less than min_gain";
  if (options.byte_limit > 0) return "no more can be moved under the byte limit";
  if (options.kv_row_limit > 0)
    return format("no server has room for more keys under {} K/V rows", options.kv_row_limit);
  if (draft.pairs_of_load(std::min(server, draft.layout().ranks - 1), over) <=
      kTileRows * draft.layout().tokens()) {
    return format("tasks can't be cut finer than tiles of {} by {}", kTileRows, kTileRows);
  }
  return "no server has room for it";
}

/// When a server is done, over the best common time.
double finish_of(const Draft& draft, int32_t server) {
  const PlanOptions& options = draft.options();
  const auto at = static_cast<size_t>(server);
  const double load = static_cast<double>(draft.server(server).load);
  const double finish =
      (options.ci.empty() ? 0 : options.ci[at]) + load / (options.speeds.empty() ? 1 : options.speeds[at]);
  return finish / draft.best_finish();
}

void report_shortfalls(const Draft& draft, PlanResult& result) {
  for (int32_t i = 0; i < result.plan.servers; ++i) {
    const int64_t over = draft.excess(i, 0);
    if (over <= 0) continue;
    const double finish = finish_of(draft, i);
    result.latest_finish = std::max(result.latest_finish, finish);
    result.within_tolerance = false;
    result.shortfalls.push_back(
        format("server {} finishes at {} of the best common time: {}", i, finish, why_short(draft, i, over)));
  }
}

/// Throws InputError that names the server which holds or ships more than it may.
void check_limits(const Plan& plan, const PlanOptions& options) {
  if (options.kv_row_limit == 0 && options.byte_limit == 0) return;
  const Exchange exchange = make_exchange(plan);
  const std::vector<int64_t> held = held_kv_rows(plan, exchange);
  const Traffic traffic = planned_traffic(plan, exchange, options.bytes);
  for (size_t i = 0; i < held.size(); ++i) {
    DISTCA_CHECK_INPUT(options.kv_row_limit == 0 || held[i] <= options.kv_row_limit,
                       "server {} would hold {} K/V rows, the limit is {}: raise it, or use more ranks", i,
                       held[i], options.kv_row_limit);
    const int64_t busy = std::max(traffic.ranks[i].send, traffic.ranks[i].receive);
    DISTCA_CHECK_INPUT(
        options.byte_limit == 0 || busy <= options.byte_limit,
        "server {} would send or receive {} bytes, the limit is {}: raise it, or use more ranks", i, busy,
        options.byte_limit);
  }
}

/// One way to make a plan.
struct Attempt {
  double held_back = 0;  // share of the tolerance
  double least_tolerance = kLeastTolerance;
  SearchFor goal = SearchFor::kBusiest;
};

PlanResult schedule_once(const Layout& layout, const PlanOptions& options, const Attempt& attempt) {
  Draft draft(layout, options, attempt.least_tolerance);
  draft.hold_back(attempt.held_back);
  assign_all(draft);
  Repair(draft).run();
  PlanResult result;
  const SearchCost cost = search(draft, options.search_moves, attempt.goal);
  result.cost_before_search = cost.before;
  result.cost = cost.after;
  draft.hold_back(0);
  Repair(draft).run();
  if (options.byte_limit > 0) keep_byte_limit(draft);
  if (options.min_gain > 0) drop_poor_flows(draft, options.min_gain);
  result.plan = {layout, layout.ranks + options.dedicated, draft.tasks()};
  draft.keep_tolerance();
  if (options.min_gain == 0) level(draft, result.plan.tasks);
  result.plan.sort_tasks();
  report_shortfalls(draft, result);
  return result;
}

Traffic traffic_of(const Plan& plan, const RowBytes& bytes) {
  return planned_traffic(plan, make_exchange(plan), bytes);
}

/// Bytes by the root alone, or 0 where documents span ranks: the bound is loose there.
double bound_of(const Layout& layout, const PlanOptions& options) {
  const int32_t servers = layout.ranks + options.dedicated;
  std::vector<int64_t> loads(static_cast<size_t>(servers), 0);
  int64_t total = 0, padding = 0;
  for (const Shard& shard : layout.shards) {
    if (shard.tokens.size() < layout.doc_lengths[static_cast<size_t>(shard.doc)]) return 0;
    const int64_t load = padded_pairs({shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home});
    loads[static_cast<size_t>(shard.home)] += load;
    total += load;
    padding = std::max(padding, (kTileRows - shard.tokens.end % kTileRows) % kTileRows);
  }
  const FinishTimes times = finish_times(total, servers, options.speeds, options.ci, options.tolerance);
  return root_bound_bytes(loads, times.capacity, options.bytes, padding);
}

/// Replaces a plan far above the lower bound by one whose servers together ship less, if there is one.
void save_bytes(const Layout& layout, const PlanOptions& options, PlanResult& result) {
  const double bound = bound_of(layout, options);
  if (bound == 0) return;
  auto bytes = static_cast<double>(traffic_of(result.plan, options.bytes).total());
  for (const Saving& saving : kSavings) {
    if (bytes <= saving.far_above * bound || result.plan.servers < saving.servers) return;
    PlanOptions more = options;
    more.search_moves = saving.moves * options.search_moves;
    PlanResult best;
    double least = (1 - saving.worthwhile) * bytes;
    for (const double held_back : kManyHeldBack) {
      PlanResult other = schedule_once(layout, more, {.held_back = held_back, .goal = SearchFor::kBytes});
      const auto other_bytes = static_cast<double>(traffic_of(other.plan, options.bytes).total());
      if (other.within_tolerance < result.within_tolerance || other_bytes >= least) continue;
      best = std::move(other);
      least = other_bytes;
    }
    if (best.plan.servers == 0) continue;
    result = std::move(best);
    bytes = least;
  }
}

/// The best of a few attempts.
PlanResult schedule_well(const Layout& layout, const PlanOptions& options) {
  PlanResult result = schedule_once(layout, options, {});
  if (result.plan.servers > kManyServers) return result;
  const bool limited = options.byte_limit > 0 || options.kv_row_limit > 0 || options.min_gain > 0;
  if (options.search_moves > 0) {
    PlanResult other = schedule_once(layout, options, {.held_back = kHeldBack});
    other.cost_before_search = result.cost_before_search;
    const bool better = other.within_tolerance >= result.within_tolerance && other.cost < result.cost;
    if (better) result = std::move(other);
    // The bound is one of equal servers, and of pairs.
    const bool equal = options.dedicated == 0 && options.ci.empty() && options.speeds.empty();
    if (equal && !limited && !options.cost.in_seconds()) save_bytes(layout, options, result);
  }
  const bool far_short = result.latest_finish > 1 + options.tolerance + kFarShort;
  if (far_short && options.min_gain == 0) {
    for (const double looser : kLooserTolerances) {
      PlanResult other = schedule_once(layout, options, {.least_tolerance = looser});
      if (other.within_tolerance || other.latest_finish < result.latest_finish) result = std::move(other);
      if (result.within_tolerance) break;
    }
  }
  return result;
}

int64_t busiest(const Plan& plan, const RowBytes& bytes) {
  const Traffic traffic = traffic_of(plan, bytes);
  return std::max(traffic.max_send(), traffic.max_receive());
}

/// Drafts count bytes a little short: the last tiles move uncounted. What is above the limit is planned again
/// for a lower one.
PlanResult schedule_under_limit(const Layout& layout, const PlanOptions& options) {
  PlanOptions lower = options;
  for (int attempt = 0;; ++attempt) {
    PlanResult result = schedule_well(layout, lower);
    const int64_t busy = busiest(result.plan, options.bytes);
    if (busy <= options.byte_limit || attempt == kLimitAttempts) return result;
    const double ratio = static_cast<double>(options.byte_limit) / static_cast<double>(busy);
    lower.byte_limit = std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(lower.byte_limit) * std::min(ratio, 0.98)));
  }
}

}  // namespace

PlanResult schedule(const Layout& layout, const PlanOptions& options) {
  if (options.quick) {
    PlanOptions rows_alone = options;
    rows_alone.byte_limit = 0;
    PlanResult result = schedule_once(layout, options, {});
    check_limits(result.plan, rows_alone);
    return result;
  }
  PlanResult result =
      options.byte_limit > 0 ? schedule_under_limit(layout, options) : schedule_well(layout, options);
  check_limits(result.plan, options);
  return result;
}

}  // namespace distca
