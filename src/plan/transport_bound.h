// The least that sharing out donors' surplus over recipients' rooms costs, where few servers' surplus and
// room match badly.
//
// Let f(x) be the least that x of load costs which one server computes for another: f never falls, and
// f(x + y) <= f(x) + f(y). Where load comes in to a server by some arcs and goes out by others, laying the
// two side by side gives direct arcs: of these, each lies within an arc that ends where it does, no two
// within the same. So some flows from donors to recipients alone cost no more, and empty every donor within
// every room. Over flows like that, branch and bound splits the range of one flow after the other; in a range
// f is at least a line from its lower end, and the cheapest flows under lines are a transport problem.
// Wherever it stops, the least of what is open is a bound.
#pragma once

#include <vector>

#include "plan/move_cost.h"

namespace distca {

/// What it costs at least to share out `surplus` over `rooms` after about `work` flows were looked at: more
/// is closer. 0 where that can't be done.
double transport_bound_bytes(const std::vector<double>& surplus, const std::vector<double>& rooms,
                             const MoveCost& cost, int work = 100'000);

}  // namespace distca
