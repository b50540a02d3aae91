// The checks behind Plan::validate, and the same for exchange tables. They read the decision only, share no
// code with what makes it, and name the first fault with the numbers that are wrong.
#pragma once

#include <string>

#include "plan/exchange.h"
#include "plan/layout.h"
#include "plan/plan.h"

namespace distca {

/// "document 3, tokens [0, 128), home 1, row 0".
std::string text_of(const Shard& shard);
/// "document 3, queries [128, 256), keys [0, 128), server 2".
std::string text_of(const Task& task);

/// Throws Error unless shards are in order, cover each document once, and overlap in no rank's rows.
void validate(const Layout& layout);

/// Throws Error unless each causal pair of each document is covered by exactly one task.
void validate_coverage(const Layout& layout, const std::vector<Task>& tasks);

/// Throws Error unless the tables bring each server exactly the rows that the plan's tasks there read, from
/// the ranks and rows where the plan's layout has them.
void validate(const Exchange& exchange, const Plan& plan);

}  // namespace distca
