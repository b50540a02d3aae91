#include "plan/report.h"

#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "plan/baselines.h"
#include "plan/bound.h"
#include "plan/exchange.h"
#include "plan/finish.h"

namespace distca {
namespace {

double mean(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<int64_t> costs_of_servers(const std::vector<Task>& tasks, int32_t servers, const TaskCost& cost) {
  std::vector<int64_t> loads(static_cast<size_t>(servers), 0);
  for (const Task& task : tasks) loads[static_cast<size_t>(task.server)] += cost(task);
  return loads;
}

/// Every query at the rank that is home to it.
std::vector<Task> home_tasks(const Layout& layout) {
  std::vector<Task> tasks;
  for (const Shard& shard : layout.shards) {
    tasks.push_back({shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home});
  }
  return tasks;
}

void report_tokens(const Layout& layout, PlanReport& report) {
  const std::vector<int64_t> tokens = layout.tokens_of_ranks();
  report.tokens_max_over_mean = max_over_mean(tokens);
  for (const int64_t count : tokens) {
    report.token_deviation =
        std::max(report.token_deviation, std::abs(static_cast<double>(count) - mean(tokens)));
  }
}

void report_moves(const Plan& plan, PlanReport& report) {
  report.tasks = static_cast<int64_t>(plan.tasks.size());
  const std::vector<Shard>& shards = plan.layout.shards;
  for (const Task& task : plan.tasks) {
    const auto after =
        std::upper_bound(shards.begin(), shards.end(), task, [](const Task& t, const Shard& s) {
          return t.doc != s.doc ? t.doc < s.doc : t.q.begin < s.tokens.begin;
        });
    report.moved_tasks += (after - 1)->home != task.server;
  }
}

void report_finish(const PlanOptions& options, PlanReport& report) {
  const int64_t total = std::accumulate(report.loads.begin(), report.loads.end(), int64_t{0});
  const FinishTimes times =
      finish_times(total, report.servers, options.speeds, options.ci, options.tolerance);
  double worst = 0;
  for (size_t r = 0; r < report.loads.size(); ++r) {
    const double speed = options.speeds.empty() ? 1 : options.speeds[r],
                 ci = options.ci.empty() ? 0 : options.ci[r];
    const double best = std::max(ci, times.best);
    if (best > 0) worst = std::max(worst, (ci + static_cast<double>(report.loads[r]) / speed) / best);
  }
  if (!options.speeds.empty() || !options.ci.empty()) report.finish_max_over_best = worst;
  if (options.policy != Policy::kCad) report.within_tolerance = worst <= 1 + options.tolerance;
}

/// Capacities are those of the total load at home, or as planned where cutting tiles apart has added to it.
void report_bound(const Layout& layout, const PlanOptions& options, const std::vector<int64_t>& padded,
                  PlanReport& report) {
  if (options.policy != Policy::kCad || options.layout != LayoutKind::kFixed || options.cost.in_seconds())
    return;
  const auto sum = [](const std::vector<int64_t>& loads) {
    return std::accumulate(loads.begin(), loads.end(), int64_t{0});
  };
  const int64_t total = std::max(sum(padded), sum(costs_of_servers(home_tasks(layout), report.servers, {})));
  const FinishTimes times =
      finish_times(total, report.servers, options.speeds, options.ci, options.tolerance);
  const LowerBound bound = lower_bound(layout, times.capacity, options.bytes);
  report.lower_bound = bound.root;
  report.mask_bound = bound.mask;
  report.best_bound = bound.best;
}

}  // namespace

double max_over_mean(const std::vector<int64_t>& values) {
  if (values.empty() || mean(values) == 0) return 1;
  return static_cast<double>(*std::max_element(values.begin(), values.end())) / mean(values);
}

PlanReport plan_and_report(const Layout& layout, const PlanOptions& options, PlanResult& result) {
  PlanReport report;
  const double start = wall_seconds();
  result = make_plan(layout, options);
  const double planned = wall_seconds();
  const Exchange exchange = make_exchange(result.plan);
  report.exchange_ms = (wall_seconds() - planned) * 1e3;
  report.plan_ms = (planned - start) * 1e3;

  const Plan& plan = result.plan;
  const bool own_layout = options.policy != Policy::kNone && options.policy != Policy::kCad;
  report.policy = name_of(options.policy);
  report.layout = own_layout ? report.policy : options.layout == LayoutKind::kFixed ? "fixed" : "free";
  report.servers = plan.servers;
  report.tolerance = options.tolerance;
  report.within_tolerance = result.within_tolerance;
  report.shortfalls = result.shortfalls;
  const std::vector<int64_t> pairs = pairs_of_servers(plan), padded = padded_pairs_of_servers(plan);
  report.pairs_max_over_mean = max_over_mean(pairs);
  report.padded_max_over_mean = max_over_mean(padded);
  report.min_over_mean =
      mean(pairs) > 0 ? static_cast<double>(*std::min_element(pairs.begin(), pairs.end())) / mean(pairs) : 1;
  report_tokens(plan.layout, report);
  report.traffic = planned_traffic(plan, exchange, options.bytes);
  report_bound(layout, options, padded, report);
  const std::vector<int64_t> held = held_kv_rows(plan, exchange);
  report.held_rows_max_over_mean = max_over_mean(held);
  report.max_held_rows = *std::max_element(held.begin(), held.end());
  report_moves(plan, report);
  report.home_loads = costs_of_servers(home_tasks(plan.layout), plan.servers, options.cost);
  report.loads = costs_of_servers(plan.tasks, plan.servers, options.cost);
  report_finish(options, report);
  if (own_layout) report.all_gather = all_gather_traffic(plan.layout, options.cp, options.bytes);
  report.digest = plan.digest();
  return report;
}

}  // namespace distca
