#include "train/run.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "attend/attention_kernel.h"
#include "attend/device.h"
#include "attend/device_trace.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "train/checkpoint.h"
#include "train/indexed_dataset.h"
#include "train/memory_limit.h"
#include "train/metrics.h"
#include "train/outputs.h"
#include "train/recorded_step.h"
#include "train/run_trace.h"
#include "train/stop_signal.h"

namespace distca {
namespace {

/// Runs `check`; what it finds wrong is said with the place of the key, or with its name where it wasn't
/// given.
template <typename Check>
void about(const Config& config, const std::string& key, const Check& check) {
  try {
    check();
  } catch (const InputError& error) {
    const std::string what = error.what();
    const bool named = (at_key(config, key) + what).find(key) != std::string::npos;
    throw InputError(at_key(config, key) + (named ? "" : key + ": ") + what);
  }
}

/// check_parallel(), with the place of the first key that its message names.
void check_split(const Config& config, const RunInputs& inputs, int32_t ranks) {
  try {
    check_parallel(inputs, ranks);
  } catch (const InputError& error) {
    const std::string what = error.what();
    for (const auto& [key, place] : config.places)
      if (what.find(key) != std::string::npos) throw InputError(place + ": " + what);
    throw;
  }
}

void warn_of_split_documents(const RunInputs& inputs) {
  const BatchInputs batch = batch_inputs(inputs.config);
  const LongDocuments split = find_long_documents(inputs.source, batch.context);
  if (split.count > 0) {
    log_warning("{}: {} documents longer than the context of {} tokens are split into {}", inputs.source.name,
                split.count, batch.context, split.parts);
  }
}

/// What rank 0 does besides training.
class Reporter {
 public:
  Reporter(const RunInputs& inputs, int64_t first_step) : progress_(inputs.config.train.steps) {
    warn_of_split_documents(inputs);
    const std::string& path = inputs.config.train.metrics;
    if (!path.empty()) metrics_.emplace(path, first_step);
  }

  void report(const StepMetrics& metrics) {
    if (metrics_) metrics_->write(metrics);
    progress_.show(metrics);
  }

 private:
  ProgressLine progress_;
  std::optional<MetricsFile> metrics_;
};

/// Where the run's documents go on.
BatchStream stream_of(const RunInputs& inputs, int32_t ranks, const std::string& checkpoint) {
  BatchStream stream = make_stream(inputs, grid_of(inputs.config, ranks));
  if (!checkpoint.empty()) {
    const std::string path = checkpoint + "/data.json";
    stream.restore_state(read_text(path), path);
  }
  if (inputs.repeated) stream.repeat(*inputs.repeated);
  return stream;
}

/// Whether any rank was told to stop. Every rank calls it.
bool should_stop(Fabric& fabric) {
  double stop = stop_was_signalled() ? 1 : 0;
  fabric.all_reduce(std::span<double>(&stop, 1), ReduceOp::kMax, "whether to stop");
  return stop > 0;
}

bool checkpoint_is_due(const Config& config, int64_t steps_done, bool stopped) {
  if (config.checkpoint.dir.empty()) return false;
  const bool last = stopped || steps_done == config.train.steps;
  return last || (config.checkpoint.every > 0 && steps_done % config.checkpoint.every == 0);
}

/// Keeps the spans of the chosen steps, and writes them when those are done.
class StepTracer {
 public:
  StepTracer(const RunInputs& inputs, int32_t ranks, int64_t first_step)
      : inputs_(inputs), ranks_(ranks), first_(inputs.trace.first), last_(inputs.trace.last) {
    if (first_ < 0) first_ = first_step, last_ = first_step + 2;
    done_ = inputs.trace.path.empty();
  }

  void before_step(Trainer& trainer) {
    const bool chosen = trainer.next_step() >= first_ && trainer.next_step() < last_;
    if (!done_ && chosen) trainer.spans.start();
    const bool records_device = !inputs_.trace.device_path.empty() && trainer.fabrics().world.rank() == 0;
    if (records_device && trainer.next_step() == first_) device_.emplace(inputs_.device);
  }

  void after_step(const Trainer& trainer, const StepMetrics& metrics) {
    if (metrics.step + 1 >= last_) write_device();
    if (done_ || metrics.step < first_ || metrics.step >= last_) return;
    steps_.push_back({trainer.last_batch(), metrics.digest});
  }

  /// Writes what there is, once all chosen steps are done or `at_the_end`. Every rank calls it, this one
  /// being `rank` of the run.
  void write(Trainer& trainer, int32_t rank, bool at_the_end) {
    if (at_the_end) write_device();
    if (done_) return;
    if (steps_.empty()) return at_the_end ? warn(rank) : void();
    if (!at_the_end && trainer.next_step() < last_) return;
    trainer.spans.start(/*keep_spans=*/false);
    write_trace(trainer.fabrics().world, rank, trainer.spans.spans(), inputs_.trace.path,
                recorded_member(inputs_, ranks_, steps_));
    trainer.spans.clear();
    done_ = true;
  }

  bool done() const { return done_; }
  void set_done(bool done) { done_ = done; }

 private:
  void write_device() {
    if (!device_) return;
    device_->write(inputs_.trace.device_path);
    device_.reset();
  }

  void warn(int32_t rank) const {
    if (rank == 0)
      log_warning("--trace {}: none of the steps {} to {} was run", inputs_.trace.path, first_, last_ - 1);
  }

  const RunInputs& inputs_;
  int32_t ranks_;
  int64_t first_, last_;
  bool done_ = false;
  std::vector<RecordedStep> steps_;
  std::optional<DeviceTrace> device_;
};

void add_step(RunSummary& run, const StepMetrics& step) {
  if (run.steps++ == 0) run.first_loss = step.loss;
  run.last_loss = step.loss;
  run.digest = step.digest;
  run.tokens += step.tokens;
  run.padding += step.padding;
  run.seconds += step.step_s;
  run.planning.add(step);
  const auto mean = [&](double& so_far, double value) {
    so_far += (value - so_far) / static_cast<double>(run.steps);
  };
  mean(run.load_max_over_mean, step.load_max_over_mean);
  mean(run.load_max_over_mean_none, step.load_max_over_mean_none);
  mean(run.bytes, static_cast<double>(step.bytes));
  mean(run.wait_s, step.wait_s);
}

std::string last_good(const std::string& checkpoint) {
  return checkpoint.empty() ? "there is no earlier checkpoint" : "the last good checkpoint is " + checkpoint;
}

StepMetrics next_step(Trainer& trainer, const std::string& checkpoint) {
  try {
    return trainer.step();
  } catch (const NotFinite& error) {
    throw Error(format("{}; {}", error.what(), last_good(checkpoint)));
  }
}

/// What rank 0 does before the first step, after all else was checked.
void prepare_to_write(const Config& config, const std::string& checkpoint) {
  if (!config.checkpoint.dir.empty()) {
    about(config, "checkpoint.dir", [&] { probe_folder("checkpoint.dir", config.checkpoint.dir); });
  }
  if (!config.train.metrics.empty()) {
    about(config, "train.metrics", [&] { probe_output("train.metrics", config.train.metrics); });
  }
  const bool by_name = config.checkpoint.resume == "latest" && !checkpoint.empty();
  if (by_name && latest_checkpoint(config.checkpoint.dir).empty()) {
    log_warning("{}/latest is missing: going on from the newest whole checkpoint there, {}",
                config.checkpoint.dir, checkpoint);
  }
}

/// Returns its folder. `checkpoint` is the one before it. Every rank calls it, and rank 0 writes.
std::string write_checkpoint(const Config& config, const Trainer& trainer, const std::string& checkpoint) {
  CheckpointTensors tensors;
  if (!trainer.place.server) tensors = gather_checkpoint(trainer);
  if (trainer.fabrics().world.rank() > 0) return checkpoint_folder(config.checkpoint, trainer.next_step());
  try {
    return save_checkpoint(config.checkpoint, trainer, tensors);
  } catch (const Error& error) {
    throw Error(format("the checkpoint of step {} could not be written: {}; {}", trainer.next_step(),
                       error.what(), last_good(checkpoint)));
  }
}

/// Something to predict: a document, or a part of a split one, of two tokens.
void check_targets(const TokenSource& source, int64_t context) {
  DISTCA_CHECK_INPUT(context > 1,
                     "data.context = {} leaves nothing to predict: a document's first token is "
                     "not a target",
                     context);
  for (int64_t doc = 0; doc < source.documents; ++doc)
    if (source.length(doc) > 1) return;
  throw InputError(format("{}: no document has two tokens, so there is nothing to predict", source.name));
}

}  // namespace

/// What goes by the CPU time of a rank's thread says nothing of a device.
void check_measures(const Config& config) {
  if (config.train.device == "cpu") return;
  for (const auto& [set, key] : {std::pair(config.link.clock == "virtual", "link.clock = \"virtual\""),
                                 {config.parallel.speeds.measured, "parallel.speeds = \"measured\""}}) {
    DISTCA_CHECK_INPUT(
        !set, "{} goes by the CPU time of ranks, and with train.device = \"{}\" these compute elsewhere", key,
        config.train.device);
  }
}

/// A graph is of one number of rows, and of a device that has graphs.
void check_graphs(const Config& config, at::Device device) {
  if (!config.attention.graphs) return;
  for (const auto& [varies, key] : {std::pair(config.attention.layout == "free", "layout = \"free\""),
                                    {config.attention.policy == "wlb", "policy = \"wlb\""}}) {
    DISTCA_CHECK_INPUT(
        !varies,
        "attention.graphs = true captures work on a fixed number of rows, and with attention.{} "
        "a rank has other rows in every step",
        key);
  }
  DISTCA_CHECK_INPUT(
      has_graphs(device.type()),
      "attention.graphs = true captures work in CUDA graphs, and train.device = \"{}\" has none",
      config.train.device);
}

void check_inputs(const RunInputs& inputs) {
  const Config& config = inputs.config;
  about(config, "train.device", [&] { check_measures(config); });
  about(config, "data.context", [&] {
    const BatchStream stream(inputs.source, batch_inputs(config));
    check_targets(inputs.source, batch_inputs(config).context);
  });
  about(config, "attention.kernel",
        [&] { make_attention_kernel(config.attention.kernel, inputs.device.type(), 1); });
  DISTCA_CHECK_INPUT(config.attention.overlap != "signal" || config.checkpoint.dir.empty(),
                     "{}attention.overlap = \"signal\" trains nothing: leave checkpoint.dir out",
                     at_key(config, "attention.overlap"));
}

RunInputs read_inputs(const Config& config) {
  RunInputs inputs;
  inputs.config = config;
  about(config, "train.device", [&] { inputs.device = device_of(config.train.device); });
  about(config, "attention.graphs", [&] { check_graphs(config, inputs.device); });
  about(config, "model.config", [&] { inputs.model = find_llama_config(config.model.config); });
  about(config, "data.path",
        [&] { inputs.source = token_source(std::make_shared<IndexedDataset>(config.data.path)); });
  check_inputs(inputs);
  about(config, config.checkpoint.resume.empty() ? "checkpoint.dir" : "checkpoint.resume", [&] {
    const std::string checkpoint = checkpoint_to_resume(config.checkpoint);
    const std::string stored = config.model.dtype == "float64" ? "float64" : "float32";
    if (!checkpoint.empty()) check_checkpoint(checkpoint, inputs.model, stored);
  });
  if (!config.train.metrics.empty()) {
    about(config, "train.metrics",
          [&] { check_metrics(config.train.metrics, !config.checkpoint.resume.empty()); });
  }
  return inputs;
}

void say_timing_only(const Config& config) {
  if (config.attention.overlap != "signal") return;
  log_warning(
      "attention.overlap = \"signal\": after the first step exchanges move one byte a peer, and attention is "
      "computed on rows that came then. Only times mean something; losses and gradients do not");
}

namespace {

/// The steps of a run and what comes after them, on one rank; gone on with by those left when a dedicated
/// server is lost.
class Run {
 public:
  Run(Fabric& world, const RunInputs& inputs, Trainer& trainer, RunSummary& summary)
      : inputs_(inputs),
        config_(inputs.config),
        trainer_(trainer),
        summary_(summary),
        rank_(world.rank()),
        tracer_(inputs, world.world_size(), trainer.next_step()),
        reported_(trainer.next_step()),
        settled_(trainer.next_step()) {}

  /// To the end; false where a rank was lost after another had ended its part.
  bool to_the_end(LiveBytes& memory) {
    for (;;) {
      try {
        steps();
        close(memory);
        return true;
      } catch (const RankLost&) {
        if (!go_on()) return false;
      }
    }
  }

 private:
  /// Where ranks are between steps. They take a number of these from each other after a loss.
  struct Settled {
    int64_t step = 0, checkpoint = 0, traced = 0;
  };

  Fabric& world() const { return trainer_.fabrics().world; }

  void steps() {
    for (;;) {
      settle();
      if (summary_.stopped || trainer_.next_step() >= config_.train.steps) return;
      tracer_.before_step(trainer_);
      next_step(trainer_, summary_.checkpoint);
    }
  }

  /// What there is to do after a step. Begun again where a rank is lost in it.
  void settle() {
    const int64_t step = trainer_.next_step();
    if (settled_ == step) return;
    report();
    tracer_.write(trainer_, rank_, /*at_the_end=*/false);
    summary_.stopped = should_stop(world()) && step < config_.train.steps;
    if (checkpoint_is_due(config_, step, summary_.stopped) && checkpointed_ != step) {
      summary_.checkpoint = write_checkpoint(config_, trainer_, summary_.checkpoint);
      checkpointed_ = step;
    }
    settled_ = step;
  }

  /// Once for every step, on this rank alone.
  void report() {
    if (reported_ == trainer_.next_step()) return;
    reported_ = trainer_.next_step();
    const StepMetrics& metrics = trainer_.last_metrics();
    tracer_.after_step(trainer_, metrics);
    add_step(summary_, metrics);
    if (rank_ > 0) return;
    if (!reporter_) reporter_.emplace(inputs_, summary_.first_step);
    reporter_->report(metrics);
  }

  void close(LiveBytes& memory) {
    reporter_.reset();
    tracer_.write(trainer_, rank_, /*at_the_end=*/true);
    const at::Device device = inputs_.device;
    const auto identity = static_cast<int64_t>(device_identity(device));
    const std::vector<int64_t> devices = gather_numbers(world(), identity, "devices of ranks");
    const int64_t peak = device.is_cuda() ? peak_bytes(device) : memory.peak();
    set_measured(summary_.memory, devices, gather_numbers(world(), peak, "peaks of memory"));
    summary_.breakdown = gather_breakdown(world(), {trainer_.spans.seconds(), trainer_.steps_s, rank_});
  }

  /// After RankLost: agrees with those left on where to go on. False where some have ended already.
  bool go_on() {
    for (;;) {
      try {
        Survivors left = world().survivors("agreement on who is left");
        if (left.fabric == nullptr) return false;
        trainer_.go_on(std::move(left.fabric));
        agree_on_settled();
        for (; warned_ < left.lost.size(); ++warned_) warn(left.lost[warned_]);
        return true;
      } catch (const RankLost&) {
      }
    }
  }

  void agree_on_settled() {
    const Settled own = {settled_, checkpointed_, tracer_.done()};
    std::vector<Settled> all(static_cast<size_t>(world().world_size()));
    world().all_gather(&own, all.data(), sizeof own, "what is settled");
    for (const Settled& rank : all) settled_ = std::min(settled_, rank.step);
    checkpointed_ = all[0].checkpoint;
    tracer_.set_done(all[0].traced != 0);
  }

  void warn(const LostRank& lost) const {
    if (rank_ > 0) return;
    const int64_t step = trainer_.next_step();
    log_warning("a dedicated server was lost {} step {} ({}): its tasks go to the ranks that are left{}",
                trainer_.begun_before() > 0 ? "in" : "before", step, lost.failure,
                trainer_.begun_before() > 0 ? ", and the step is done again" : "");
  }

  const RunInputs& inputs_;
  const Config& config_;
  Trainer& trainer_;
  RunSummary& summary_;
  const int32_t rank_;  // of the run: it stays when others are lost
  StepTracer tracer_;
  std::optional<Reporter> reporter_;
  int64_t reported_, settled_;
  int64_t checkpointed_ = -1;
  size_t warned_ = 0;
};

}  // namespace

RunSummary run_training(Fabric& fabric, RunInputs inputs) {
  enable_live_bytes();
  LiveBytes& memory = new_live_bytes();
  const LiveBytesScope counted(&memory);
  const Config& config = inputs.config;
  check_split(config, inputs, fabric.world_size());
  about(config, "train.tokens_per_batch", [&] { check_run(inputs, fabric.world_size()); });
  about(config, "train.device", [&] { check_exchanges(fabric, inputs.device); });
  RunSummary summary;
  summary.checkpoint = checkpoint_to_resume(config.checkpoint);
  const MemoryPlan planned =
      plan_memory(fabric, inputs, stream_of(inputs, fabric.world_size(), summary.checkpoint));
  summary.memory.predicted = planned.peaks;
  Trainer trainer(fabric, inputs);
  if (!summary.checkpoint.empty()) load_checkpoint(summary.checkpoint, trainer);
  memory.reset_peak();
  reset_peak_bytes(inputs.device);
  summary.first_step = trainer.next_step();
  if (fabric.rank() == 0) {
    prepare_to_write(config, summary.checkpoint);
    for (const std::string& line : planned.report) log_info("{}", line);
  }
  // No rank goes on to write before all have read what they start from.
  fabric.barrier("start of the run");
  if (summary.first_step >= config.train.steps && fabric.rank() == 0) {
    log_info("nothing to do: {} is at step {} of {}", summary.checkpoint, summary.first_step,
             config.train.steps);
  }
  if (fabric.rank() == 0) say_timing_only(config);
  trainer.spans.start(/*keep_spans=*/false);
  const bool whole = Run(fabric, inputs, trainer, summary).to_the_end(memory);
  if (fabric.rank() == 0) {
    const bool all_left = trainer.fabrics().world.world_size() == fabric.world_size();
    if (whole && all_left) compare_memory(config, summary.memory);
    if (summary.steps > 0) {
      std::fputs(breakdown_table(summary.breakdown).c_str(), stderr);
      std::fputs(planning_line(summary.breakdown, summary.planning).c_str(), stderr);
    }
  }
  if (summary.stopped && fabric.rank() == 0) {
    log_warning("stopped by SIGTERM after step {} of {}; {}", trainer.next_step(), config.train.steps,
                last_good(summary.checkpoint));
  }
  return summary;
}

}  // namespace distca
