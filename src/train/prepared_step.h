// All that a rank needs before a step begins, made in a background thread while the step before it runs: the
// global batch, one plan per nano-batch, this rank's tables and its tokens. Every rank derives the same plans
// from the same inputs; whoever runs the step compares the digests first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <vector>

#include "attend/core_attention.h"
#include "model/llama.h"
#include "plan/policy.h"
#include "train/global_batch.h"

namespace distca {

/// One nano-batch as this rank sees it: as many rows as its chunk has, padding included.
struct PreparedNanoBatch {
  BatchTables tables;
  uint64_t digest = 0;         // of the plan
  at::Tensor tokens, targets;  // int64 (rows)
  Rope rope;
  double load_max_over_mean = 1;       // over servers, in padded pairs
  double load_max_over_mean_none = 1;  // if every rank computed the queries it is home to
};

struct PreparedStep {
  GlobalBatch batch;
  std::vector<PreparedNanoBatch> nano_batches;  // as in the batch
  StreamState after;                            // of the stream, once this step is done
  double plan_ms = 0;                           // thread CPU time of planning and of the tables

  uint64_t digest() const;  // of all plans
};

struct PrepareOptions {
  int32_t rank = 0, ranks = 1;
  PlanOptions plan;
  LlamaConfig model;
  at::ScalarType dtype = at::kFloat;
  int64_t steps = 0;  // the last step + 1: nothing beyond it is prepared
};

/// Makes one step after the other, each a step ahead of its use.
class StepPreparer {
 public:
  /// Starts on the stream's next step.
  StepPreparer(BatchStream stream, PrepareOptions options);
  /// Waits for the step under way, if any.
  ~StepPreparer();

  /// The next step, and starts on the one after it. Throws what making it threw.
  PreparedStep take();

 private:
  PreparedStep make();
  PreparedNanoBatch make_nano_batch(const GlobalBatch& batch, const NanoBatch& nano_batch, double& plan_s);
  void start();

  BatchStream stream_;
  PrepareOptions options_;
  std::future<PreparedStep> next_;
};

}  // namespace distca
