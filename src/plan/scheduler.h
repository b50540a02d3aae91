// The scheduler of core attention disaggregation: from what every rank is home to, to tasks with which every
// server finishes within the tolerance of the best common finish time, at few bytes.
//
// 1. Shares by the finish-time rule: ranks above theirs are donors, the others recipients.
// 2. Transport: how much of whose surplus goes to whom. A piece of F pairs costs about sqrt(F) bytes, so few
//    large flows are cheap.
// 3. Carving (plan/carve.h): each donor's flows are cut out of its documents.
// 4. Repair: where the grid left a server above its capacity, flows are shifted and the donor is cut again.
// 5. Search: a few donors and recipients at a time are assigned anew; what lowers the cost is kept. The cost
//    is bytes, and those of servers busier than the busiest donor must be count again.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/policy.h"

namespace distca {

/// Options must have been checked. Tasks come out in execution order.
PlanResult schedule(const Layout& layout, const PlanOptions& options);

}  // namespace distca
