// A training run on every one of its ranks: resume or start, step by step, with metrics, progress and
// checkpoints from rank 0.
#pragma once

#include "comm/fabric.h"
#include "train/trainer.h"

namespace distca {

/// Reads configuration's model and data set, and checks all that can be checked without ranks. Throws
/// InputError, and has written nothing.
RunInputs read_inputs(const Config& config);

/// Runs to the last step. Every rank calls it; nothing is written before all of the input was checked. Throws
/// InputError for wrong input, and Error for a run that can't go on, with the last good checkpoint named.
void run_training(Fabric& fabric, const RunInputs& inputs);

}  // namespace distca
