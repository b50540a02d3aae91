// What a rank of a run needs at its peak, found by running its steps without numbers: the trainer's own
// program — plans, layers, exchanges, backward — on tensors that have sizes and no memory, which are counted
// (attend/live_bytes.h). It follows the program wherever that changes, costs milliseconds a step, and needs
// no other rank.
#pragma once

#include <cstdint>

#include "train/rank_setup.h"

namespace distca {

/// Bytes of tensors, on one rank.
struct PeakMemory {
  int64_t state = 0;             // parameters, gradients, optimizer: what lives between steps
  int64_t peak = 0;              // the most at once, all included
  int64_t kv_rows = 0;           // the most K/V rows of a plan that this rank serves
  double worst_finish = 1;       // of the plans: latest finish over the best common one
  int64_t beyond_row_limit = 0;  // plans that can't keep RunInputs::kv_row_limit
};

struct DryRunOptions {
  int32_t rank = 0, world_size = 1;
  int64_t steps = 1;  // how many are run
};

/// From the stream's next step on; fewer steps than asked for where the run has no more. Where it has more,
/// the peak is higher than that of the steps run by what their peaks' standard deviation lets expect. Calls
/// enable_live_bytes().
PeakMemory dry_run(const RunInputs& inputs, BatchStream stream, const DryRunOptions& options);

}  // namespace distca
