// How `distca plan` shows its reports.
#pragma once

#include <vector>

#include "base/json.h"
#include "plan/profile.h"
#include "plan/report.h"

namespace distca {

Json report_json(const PlanReport& report);

/// A table with a row a report, and below it why a plan falls short.
void print_reports(const Layout& layout, const std::vector<PlanReport>& reports);

/// Seconds in which the busiest rank's exchanges of a forward layer pass its link, node by node at the speed
/// between nodes; a single node's at the speed inside.
double exchange_seconds(const Traffic& traffic, const Links& links, int32_t ranks_per_node);

}  // namespace distca
