// All that a rank needs before a step begins, made in a background thread while the step before it runs: the
// global batch, the plans of its ticks, this rank's tables and its tokens. Every rank derives the same plans
// from the same inputs; whoever runs the step compares the digests first.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "model/llama.h"
#include "train/global_batch.h"
#include "train/stage_pass.h"
#include "train/tick_plans.h"

namespace distca {

struct PreparedStep {
  GlobalBatch batch;
  std::vector<NanoBatchRows> nano_batches;  // this rank's, as in the batch
  std::vector<PreparedTick> ticks;          // in order
  std::vector<uint64_t> digests;            // of the plans that this rank shares with others
  StreamState after;                        // of the stream, once this step is done
  int64_t padding = 0;                      // rows of all ranks that hold no token
  double plan_ms = 0;                       // thread CPU time of planning and of the tables
  double load_max_over_mean = 1;            // of the worst plan: latest finish over the best common one
  double load_max_over_mean_none = 1;       // if every rank computed the queries it is home to
  int64_t beyond_row_limit = 0;             // plans that can't keep the limit of K/V rows
  double idle_load = 0, idle_share = 0;     // see TickPlanner
  double own_load = 0;                      // of this rank, in the unit of costs
  int64_t held_rows = 0;                    // K/V rows of a layer, of the server that holds most
  double held_rows_max_over_mean = 1;       // of the worst plan

  uint64_t digest() const;  // of all plans
};

/// The step with its tables and rows on another device. Copies from pinned memory don't block the host.
/// Tables that are shared stay shared.
PreparedStep on_device(PreparedStep step, at::Device device);

struct PrepareOptions {
  TickPlanOptions ticks;
  PipelineSchedule schedule = PipelineSchedule::kSamePhase;
  RankPlace place;
  LlamaConfig model;
  at::ScalarType dtype = at::kFloat;
  int64_t nano_batches = 1;  // of a micro-batch
  int64_t steps = 0;         // the last step + 1: nothing beyond it is prepared
  at::Device device =
      at::kCPU;  // where steps will run: for one that isn't the CPU they are made in pinned memory
};

/// Where the documents of a nano-batch lie on the data-parallel ranks.
Layout layout_by(const PlanOptions& options, const NanoBatch& nano_batch, int64_t rows, int32_t ranks);

/// Makes one step after the other, each a step ahead of its use.
class StepPreparer {
 public:
  /// Starts on the stream's next step.
  StepPreparer(BatchStream stream, PrepareOptions options);
  /// Waits for the step under way, if any.
  ~StepPreparer();

  /// The next step, and starts on the one after it, whose plans go by `speeds`. Throws what making it threw.
  PreparedStep take(std::vector<double> speeds);
  PreparedStep take() { return take(options_.ticks.plan.speeds); }

 private:
  PreparedStep make();
  void plan_ticks(PreparedStep& step, const std::vector<Layout>& layouts) const;
  NanoBatchRows rows_of(const NanoBatch& nano_batch, const Layout& layout) const;
  void start();

  BatchStream stream_;
  PrepareOptions options_;
  std::future<PreparedStep> next_;
};

}  // namespace distca
