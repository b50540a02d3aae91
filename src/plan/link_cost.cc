#include "plan/link_cost.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/exchange.h"
#include "plan/traffic.h"

namespace distca {
namespace {

constexpr int kTries = 5;

/// A plan is done when it ends within this share of the time that no plan can beat.
constexpr double kCloseEnough = 0.02;

/// Moves of the search for plans that are only tried.
constexpr int64_t kMostSearchMoves = 200;

/// The best plan so far.
class Best {
 public:
  Best(const PlanOptions& options, const LinkCost& link) : options_(options), link_(link) {}

  PlanTimes offer(PlanResult result) {
    const PlanTimes offered = plan_times(result.plan, options_, link_);
    if (result_.plan.servers == 0 || offered.total(link_) < total()) {
      times_ = offered;
      result_ = std::move(result);
    }
    return offered;
  }
  double total() const { return times_.total(link_); }
  PlanResult take() { return std::move(result_); }

 private:
  const PlanOptions& options_;
  const LinkCost& link_;
  PlanResult result_;
  PlanTimes times_;
};

}  // namespace

double PlanTimes::total(const LinkCost& link) const {
  return link.hidden ? std::max(compute, exchange) : compute + exchange;
}

PlanTimes plan_times(const Plan& plan, const PlanOptions& options, const LinkCost& link) {
  std::vector<int64_t> loads(static_cast<size_t>(plan.servers), 0);
  for (const Task& task : plan.tasks) loads[static_cast<size_t>(task.server)] += options.cost(task);
  PlanTimes times;
  for (size_t i = 0; i < loads.size(); ++i) {
    const double speed = options.speeds.empty() ? 1 : options.speeds[i];
    const double ci = options.ci.empty() ? 0 : options.ci[i];
    times.compute = std::max(times.compute, ci + static_cast<double>(loads[i]) / speed);
  }
  const Traffic traffic = planned_traffic(plan, make_exchange(plan), options.bytes);
  const int64_t busiest = std::max(traffic.max_send(), traffic.max_receive());
  if (busiest > 0) times.exchange = 2 * link.latency + static_cast<double>(busiest) * link.load_per_byte;
  return times;
}

PlanResult make_plan(const Layout& layout, const PlanOptions& options, const LinkCost& link) {
  Best best(options, link);
  const PlanTimes even = best.offer(make_plan(layout, options));
  if (options.byte_limit > 0) return best.take();
  const bool free = even.exchange == 0 || (link.hidden && even.exchange <= even.compute);
  if (options.policy != Policy::kCad || free || link.load_per_byte <= 0) return best.take();
  PlanOptions limited = options;
  if (options.kv_row_limit == 0) {
    limited.policy = Policy::kNone;
    best.offer(make_plan(layout, limited));
    limited.policy = Policy::kCad;
  }
  limited.quick = true;
  limited.search_moves = std::min(options.search_moves, kMostSearchMoves);
  // Compute falls as exchanges may take longer. Hidden, the best time lies where both are equal; else it is
  // looked for from both ends.
  double low = even.compute, high = link.hidden ? best.total() : even.exchange;
  if (!link.hidden) low = 0;
  for (int attempt = 0; attempt < kTries && high > low * (1 + kCloseEnough); ++attempt) {
    const double target = (low + high) / 2;
    const double bytes = (target - 2 * link.latency) / link.load_per_byte;
    limited.byte_limit = std::max<int64_t>(1, static_cast<int64_t>(std::min(bytes, 0x1p62)));
    const double before = best.total();
    const PlanTimes times = best.offer(make_plan(layout, limited));
    if (link.hidden) {
      (times.compute > target ? low : high) = target;
      high = std::min(high, best.total());
    } else {
      (best.total() < before ? high : low) = target;
    }
  }
  return best.take();
}

}  // namespace distca
