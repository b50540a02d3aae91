// One rank of a data-parallel run: it holds all parameters and its chunk of every nano-batch, shares core
// attention with the other ranks, and sums gradients with them in rank order, so that all hold the same bits
// before and after every update.
#pragma once

#include <memory>
#include <string>

#include "attend/core_attention.h"
#include "base/check.h"
#include "comm/fabric.h"
#include "train/config.h"
#include "train/flat_parameters.h"
#include "train/global_batch.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/prepared_step.h"

namespace distca {

/// What a run is about, read and checked before its ranks begin.
struct RunInputs {
  Config config;
  LlamaConfig model;
  TokenSource source;
};

BatchInputs batch_inputs(const Config& config);
at::ScalarType scalar_type(const std::string& dtype);

/// Throws InputError when so many ranks can't run this: a chunk of fewer than 128 rows,
/// or of more than this machine could hold.
void check_run(const RunInputs& inputs, int32_t ranks);

/// The loss or the gradient of a step is not a finite number.
class NotFinite : public Error {
 public:
  using Error::Error;
};

class Trainer {
 public:
  /// Weights come from `config.model.weights`, or from the seed. Every rank makes one alike.
  Trainer(Fabric& fabric, const RunInputs& inputs);

  /// Continues from a checkpoint's state instead: call before the first step.
  void restore_stream(std::string_view state, const std::string& origin);

  /// Forward and backward of the next step; `parameters.gradients` then hold the sum over all ranks. Throws
  /// NotFinite naming the step and the documents when the loss or the gradient is not finite. The caller
  /// fills in the times.
  StepMetrics forward_backward();
  /// Clips, and updates the parameters: ends the step.
  void update(StepMetrics& metrics);
  /// Both, with times.
  StepMetrics step();

  int64_t next_step() const { return next_step_; }
  /// Where the stream of documents stands after the steps done so far, as restore_stream() takes it.
  std::string stream_state() const { return stream_.dump_state(after_); }

  FlatParameters parameters;
  AdamState adam;

 private:
  std::vector<double> run_nano_batches(const PreparedStep& step);
  void sum_over_ranks(std::vector<double>& losses, StepMetrics& metrics);
  [[noreturn]] void stop_for(const PreparedStep& step, const std::vector<double>& losses,
                             const StepMetrics& metrics) const;

  Fabric& fabric_;
  Config config_;
  AttentionRuntime runtime_;
  BatchStream stream_;  // dumps states; the preparer draws from a copy of its own
  PrepareOptions prepare_;
  std::unique_ptr<StepPreparer> preparer_;
  StreamState after_;
  int64_t next_step_ = 0;
};

}  // namespace distca
