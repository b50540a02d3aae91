#include "plan/policy.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "plan/baselines.h"
#include "plan/free_layout.h"
#include "plan/scheduler.h"
#include "plan/traffic.h"

namespace distca {
namespace {

constexpr int64_t kMaxServers = 1'000'000;

constexpr std::pair<const char*, Policy> kNames[] = {{"none", Policy::kNone},
                                                     {"cad", Policy::kCad},
                                                     {"wlb", Policy::kWlb},
                                                     {"cp", Policy::kCp},
                                                     {"cp-seq", Policy::kCpSeq}};

void check_scalars(const PlanOptions& options) {
  DISTCA_CHECK_INPUT(options.tolerance >= 0 && options.tolerance <= 1,
                     "a tolerance of {} is not between 0 and 1", options.tolerance);
  DISTCA_CHECK_INPUT(options.min_gain >= 0 && std::isfinite(options.min_gain),
                     "a least gain of {}: it must be finite and not negative", options.min_gain);
  DISTCA_CHECK_INPUT(options.dedicated >= 0, "{} dedicated servers: it can't be negative", options.dedicated);
  DISTCA_CHECK_INPUT(options.kv_row_limit >= 0, "a limit of {} K/V rows is negative; 0 is no limit",
                     options.kv_row_limit);
  DISTCA_CHECK_INPUT(options.byte_limit >= 0, "a limit of {} bytes is negative; 0 is no limit",
                     options.byte_limit);
  DISTCA_CHECK_INPUT(options.search_moves >= 0, "{} search moves: it can't be negative",
                     options.search_moves);
  DISTCA_CHECK_INPUT(options.cp >= 1, "a context-parallel group of {} ranks: at least 1 is needed",
                     options.cp);
}

void check(const Layout& layout, const PlanOptions& options) {
  check_scalars(options);
  const int64_t servers = int64_t{layout.ranks} + options.dedicated;
  DISTCA_CHECK_INPUT(servers <= kMaxServers, "{} ranks and {} dedicated servers: at most {} can be planned",
                     layout.ranks, options.dedicated, kMaxServers);
  DISTCA_CHECK_INPUT(options.speeds.empty() || static_cast<int64_t>(options.speeds.size()) == servers,
                     "{} speeds for {} servers: give one a server, dedicated ones included",
                     options.speeds.size(), servers);
  DISTCA_CHECK_INPUT(options.ci.empty() || static_cast<int64_t>(options.ci.size()) == servers,
                     "{} CI times for {} servers: give one a server, dedicated ones included",
                     options.ci.size(), servers);
  double all_pairs = 0;
  for (const int64_t length : layout.doc_lengths)
    all_pairs += static_cast<double>(length) * static_cast<double>(length);
  DISTCA_CHECK_INPUT(all_pairs < 0x1p61, "documents with {} pairs of tokens are more than can be counted",
                     all_pairs);
  for (const double speed : options.speeds) {
    DISTCA_CHECK_INPUT(speed >= 1e-9 && speed <= 1e9,
                       "a server's speed is {}: it must be finite, from 1e-9 to 1e9", speed);
  }
  for (const double ci : options.ci) {
    DISTCA_CHECK_INPUT(ci >= 0 && ci < 1e18,
                       "a server's CI time is {}: it must be finite, not negative and below 1e18", ci);
  }
}

/// Every rank computes the queries it is home to.
PlanResult at_home(Layout layout, int32_t dedicated) {
  PlanResult result;
  const int32_t servers = layout.ranks + dedicated;
  result.plan = {std::move(layout), servers, {}};
  for (const Shard& shard : result.plan.layout.shards) {
    result.plan.tasks.push_back({shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home});
  }
  result.plan.sort_tasks();
  return result;
}

int64_t bytes_of(const Plan& plan, const PlanOptions& options) {
  return planned_traffic(plan, make_exchange(plan), options.bytes).total();
}

/// On a free layout, or as documents lie if that is as good.
PlanResult plan_freely(const Layout& layout, const PlanOptions& options) {
  PlanOptions fixed = options;
  fixed.layout = LayoutKind::kFixed;
  PlanResult moved = make_plan(best_free_layout(layout.doc_lengths, layout.ranks, options), fixed);
  if (options.policy != Policy::kCad || !tokens_are_equal(layout)) return moved;
  PlanResult as_given = make_plan(layout, fixed);
  return bytes_of(as_given.plan, options) < bytes_of(moved.plan, options) ? as_given : moved;
}

}  // namespace

Policy policy_named(const std::string& name) {
  for (const auto& [known, policy] : kNames) {
    if (name == known) return policy;
  }
  throw InputError(format("policy '{}' is none of none, cad, wlb, cp, cp-seq", name));
}

std::string name_of(Policy policy) {
  for (const auto& [name, known] : kNames) {
    if (policy == known) return name;
  }
  return "?";
}

PlanResult make_plan(const Layout& layout, const PlanOptions& options) {
  check(layout, options);
  const bool packs_itself = options.policy != Policy::kNone && options.policy != Policy::kCad;
  if (options.layout == LayoutKind::kFree && !packs_itself) return plan_freely(layout, options);
  switch (options.policy) {
    case Policy::kCad:
      return schedule(layout, options);
    case Policy::kWlb:
      return at_home(wlb_layout(layout, options.cp), options.dedicated);
    case Policy::kCp:
      return at_home(context_parallel_layout(layout, options.cp), options.dedicated);
    case Policy::kCpSeq:
      return at_home(sequence_parallel_layout(layout, options.cp), options.dedicated);
    case Policy::kNone:
      break;
  }
  return at_home(layout, options.dedicated);
}

}  // namespace distca
