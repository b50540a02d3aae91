// Memory that is decided before the first step: what every rank will need at its peak, and how a limit is
// kept. What plans can give is the K/V rows that a server holds: fewer rows a server mean less memory there
// and, below some number, a worse balance.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/fabric.h"
#include "train/global_batch.h"
#include "train/memory_report.h"
#include "train/rank_setup.h"

namespace distca {

/// Steps whose plans the prediction goes by.
inline constexpr int64_t kPredictedSteps = 8;

struct MemoryPlan {
  std::vector<int64_t> peaks;       // predicted, by rank
  std::vector<std::string> report;  // what there is to say of them, and of the balance that a limit costs
};

/// Predicts every rank's peak, and where it exceeds parallel.memory_limit sets inputs.kv_row_limit to the
/// most rows with which none does. Throws InputError, with what every way to need less would need, where no
/// number of rows keeps the limit. Nothing for a run that is at its end. A collective.
MemoryPlan plan_memory(Fabric& world, RunInputs& inputs, const BatchStream& stream);

/// Says what was measured beside what was predicted, and warns where a limit wasn't kept.
void compare_memory(const Config& config, const MemoryReport& memory);

}  // namespace distca
