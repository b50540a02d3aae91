// A training run on every one of its ranks: resume or start, step by step, with metrics, progress and
// checkpoints from rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/fabric.h"
#include "train/memory_report.h"
#include "train/trainer.h"

namespace distca {

/// Reads configuration's model and data set, and checks all that can be checked without ranks. Throws
/// InputError, and has written nothing.
RunInputs read_inputs(const Config& config);

/// The same checks for a run whose model and documents are given.
void check_inputs(const RunInputs& inputs);

/// What a run did, from its start or resumption on.
struct RunSummary {
  int64_t first_step = 0, steps = 0;  // done here
  double first_loss = 0, last_loss = 0;
  int64_t tokens = 0, padding = 0;
  double seconds = 0;  // of all steps
  // Means over the steps.
  double load_max_over_mean = 0, load_max_over_mean_none = 0;
  double bytes = 0, wait_s = 0;
  MemoryReport memory;
  std::string checkpoint;  // the newest; empty where there is none
  bool stopped = false;    // by a signal, before the last step
  uint64_t digest = 0;     // of the last step's plans
  std::vector<RankBreakdown> breakdown;
  PlanningSums planning;

  std::string json() const;
};

/// Runs to the last step, or to the end of the step in which any rank got a stop signal, with a checkpoint
/// where the configuration has a folder for it. Every rank calls it; nothing is written before all of the
/// input was checked. Throws InputError for wrong input, and Error for a run that can't go on, with the last
/// good checkpoint named. Returns what it did.
RunSummary run_training(Fabric& fabric, RunInputs inputs);

}  // namespace distca
