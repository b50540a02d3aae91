// For tests: small runs in memory, and what the dense model on one rank makes of the same global batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/fabric.h"
#include "train/trainer.h"

namespace distca::testing {

/// Documents of random tokens below `vocabulary`.
TokenSource random_documents(const std::vector<int64_t>& lengths, int64_t vocabulary, uint64_t seed);

/// A run of 20 steps of two nano-batches of 512 rows, whose documents (of 1 to 400 tokens) leave enough
/// padding that the last of four ranks is at times empty.
RunInputs small_run(const std::string& dtype);

/// Losses of all steps, and the gradients of step 0 in the model's order, in float64.
struct RunResult {
  std::vector<double> losses;
  std::vector<NamedTensor> gradients;
};

/// Runs the trainer, every rank; the result is rank 0's.
RunResult run_rank(Fabric& fabric, const RunInputs& inputs);
RunResult run_on_threads(int32_t ranks, const RunInputs& inputs);

/// The same run with no trainer, plan or exchange: every document through dense attention, on one rank. With
/// `workload_groups` batches are packed by workload into so many.
RunResult run_dense(const RunInputs& inputs, int32_t workload_groups = 0);

}  // namespace distca::testing
