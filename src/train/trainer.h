// One rank of a run: it holds the parameters of its pipeline stage (its share of them, with tensor
// parallelism) and its chunk of every nano-batch, or is a dedicated attention server and holds neither. Ranks
// that hold the same parameters sum their gradients in rank order, so that all have the same bits before and
// after every update.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "attend/attention_call.h"
#include "base/check.h"
#include "comm/fabric.h"
#include "train/config.h"
#include "train/flat_parameters.h"
#include "train/global_batch.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/prepared_step.h"
#include "train/rank_crew.h"
#include "train/rank_grid.h"
#include "train/rank_setup.h"
#include "train/run_trace.h"
#include "train/speeds.h"
#include "train/survivors.h"

namespace distca {

/// Throws InputError when so many ranks don't divide as [parallel] asks, or the model or the schedule doesn't
/// suit it.
void check_parallel(const RunInputs& inputs, int32_t ranks);
/// Throws InputError when so many ranks can't run this: a chunk of fewer than 128 rows, or of more than this
/// machine could hold.
void check_run(const RunInputs& inputs, int32_t ranks);

/// The loss or the gradient of a step is not a finite number.
class NotFinite : public Error {
 public:
  using Error::Error;
};

class Trainer {
 public:
  /// Weights come from `config.model.weights`, or from the seed. Every rank makes one.
  Trainer(Fabric& world, const RunInputs& inputs);

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

  /// After RankLost, a collective of the ranks that are left. Then all stand at the beginning of the same
  /// step with the parameters and the optimizer's state of a run in which nothing happened: a step whose
  /// update had begun on any rank is done on all, and one that was under way otherwise is to be done again.
  /// Throws RankLost when another is lost meanwhile; it is then called again with those left.
  void go_on(std::unique_ptr<Fabric> world);

  const RankFabrics& fabrics() const { return crew_->fabrics; }
  /// Of the last step that was done; where a rank was lost at its end, with times of this rank alone.
  const StepMetrics& last_metrics() const { return metrics_; }
  /// How often the next step was begun before.
  int64_t begun_before() const { return redone_; }
  int64_t next_step() const { return next_step_; }
  /// Load that the last step's plans gave to this rank, forward and backward, in the unit of costs.
  double own_load() const { return own_load_; }
  /// What the last step was about.
  const GlobalBatch& last_batch() const { return last_batch_; }
  /// Allocations that attention's buffers have made so far.
  int64_t attention_allocations() const { return crew_->runtime.pool.allocations(); }
  /// Where the stream of documents stands after the steps done so far, as restore_stream() takes it.
  std::string stream_state() const { return stream_.dump_state(after_); }

  RankGrid grid;  // as the ranks of this one's tensor-parallel index see it
  RankPlace place;
  const std::vector<int64_t> stage_layers;
  SpanLog spans;              // of this rank; off until somebody starts it
  double steps_s = 0;         // of all steps so far, on this rank's clock
  FlatParameters parameters;  // of this rank's part; empty on a dedicated server
  AdamState adam;
  ServerSpeeds speeds;

 private:
  PreparedStep take_step();
  void apply(StepMetrics& metrics);
  void exchange_updates();
  void go_to(int64_t step);
  void sum_gradients();
  void sum_over_ranks(std::vector<double>& losses, StepMetrics& metrics);
  double gradient_norm() const;
  double computed_s() const { return crew_->computed_s() + optimizer_s_; }
  void measure_speeds();
  void agree_on_speeds();
  /// Of the attention ranks that are left.
  std::vector<double> speeds_left(const std::vector<double>& all) const {
    return speeds_of(all, attention_ranks_);
  }
  void finish_times(double begin, double computed_before, StepMetrics& metrics);
  [[noreturn]] void stop_for(const PreparedStep& step, const std::vector<double>& losses,
                             const StepMetrics& metrics) const;

  RunInputs inputs_;
  std::unique_ptr<Fabric> world_;  // of those left after a loss; before it, the caller's
  std::unique_ptr<RankCrew> crew_;
  BatchStream stream_;  // dumps states; the preparer draws from a copy of its own
  PrepareOptions prepare_;
  std::unique_ptr<StepPreparer> preparer_;
  StreamState before_, after_;  // the step under way or done last
  int64_t next_step_ = 0;
  int64_t updates_ = 0;  // steps whose update is in the parameters
  int64_t sums_ = 0;     // and whose gradients have been summed
  StepMetrics metrics_;
  const RankPlace first_place_;           // before any rank was lost
  std::vector<int32_t> attention_ranks_;  // those left, by the places they had then
  std::optional<double> begun_;           // when the step under way was begun first
  int64_t redone_ = 0;
  GlobalBatch last_batch_;
  double own_load_ = 0, attended_before_ = 0;   // of the last step: load, and seconds in attention before it
  double plan_begin_ = 0;                       // when the next step's preparation began
  double optimizer_s_ = 0, packed_before_ = 0;  // thread CPU time
};

}  // namespace distca
