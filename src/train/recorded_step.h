// A step that can be run again elsewhere: what a run was configured to do, its model and number of ranks, and
// the lengths of the step's documents. It travels as the member "distca" of a trace file. Tokens aren't
// recorded: time depends on lengths alone, so a replay draws them from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace distca {

struct RecordedStep {
  GlobalBatch batch;
  uint64_t digest = 0;  // of its plans
};

/// `"distca": {…}`, the member of a trace file.
std::string recorded_member(const RunInputs& inputs, int32_t ranks, const std::vector<RecordedStep>& steps);

/// A run of one recorded step over and over.
struct Replay {
  RunInputs inputs;
  int32_t ranks = 1;
  uint64_t digest = 0;  // of the recorded plans
};

/// Reads step `step` (−1: the first) of a trace file. `overrides` are settings of the replay, as
/// read_config() takes them, over what was recorded; train.steps is 1 unless they say otherwise. Throws
/// InputError for a file that isn't such a trace, a step that isn't in it, and settings that can't be.
Replay read_replay(const std::string& path, int64_t step, const std::vector<std::string>& overrides);

}  // namespace distca
