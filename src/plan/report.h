// What a plan amounts to: how even loads and tokens are, what it ships, how that compares with the least
// there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/policy.h"
#include "plan/traffic.h"

namespace distca {

struct PlanReport {
  std::string policy, layout;
  int32_t servers = 0;
  double tolerance = 0;
  bool within_tolerance = false;
  std::vector<std::string> shortfalls;
  // Over all servers; with speeds or CI loads are uneven by design, and `finish` tells.
  double pairs_max_over_mean = 0, padded_max_over_mean = 0, min_over_mean = 0;
  double tokens_max_over_mean = 0, token_deviation = 0;  // over ranks with a home; the deviation in tokens
  Traffic traffic;
  // Bytes (plan/bound.h), by the root alone, with the mask, and the best known; for cad on a fixed layout,
  // costs in pairs.
  std::optional<double> lower_bound, mask_bound, best_bound;
  double held_rows_max_over_mean = 0;
  int64_t max_held_rows = 0;
  int64_t tasks = 0, moved_tasks = 0;
  std::optional<double>
      finish_max_over_best;           // a server's finish ÷ the later of its CI and the best common time
  std::optional<Traffic> all_gather;  // what gathering whole groups ships, for policies that do
  std::vector<int64_t> home_loads, loads;  // of each server, in the unit of costs: at home, and as planned
  double plan_ms = 0, exchange_ms = 0;
  uint64_t digest = 0;
};

/// Plans, makes the exchange tables, times both, and reports. The plan is left in `result`.
PlanReport plan_and_report(const Layout& layout, const PlanOptions& options, PlanResult& result);

/// Largest entry over the mean of all; 1 where all are 0.
double max_over_mean(const std::vector<int64_t>& values);

}  // namespace distca
