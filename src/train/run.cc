#include "train/run.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "attend/attention_kernel.h"
#include "base/check.h"
#include "base/log.h"
#include "train/checkpoint.h"
#include "train/indexed_dataset.h"
#include "train/metrics.h"

namespace distca {
namespace {

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

bool checkpoint_is_due(const Config& config, int64_t steps_done) {
  if (config.checkpoint.dir.empty()) return false;
  const bool last = steps_done == config.train.steps;
  return last || (config.checkpoint.every > 0 && steps_done % config.checkpoint.every == 0);
}

std::string last_good(const std::string& checkpoint) {
  return checkpoint.empty() ? "there is no earlier checkpoint" : "the last good checkpoint is " + checkpoint;
}

}  // namespace

RunInputs read_inputs(const Config& config) {
  check_trainable(config);
  const std::filesystem::path metrics_folder = std::filesystem::path(config.train.metrics).parent_path();
  DISTCA_CHECK_INPUT(metrics_folder.empty() || std::filesystem::is_directory(metrics_folder),
                     "train.metrics = \"{}\": there is no folder {}", config.train.metrics,
                     metrics_folder.string());
  RunInputs inputs{config, find_llama_config(config.model.config), {}};
  inputs.source = token_source(std::make_shared<IndexedDataset>(config.data.path));
  const BatchStream stream(inputs.source, batch_inputs(config));
  make_attention_kernel(config.attention.kernel, at::kCPU, 1);
  const std::string checkpoint = checkpoint_to_resume(config.checkpoint);
  if (!checkpoint.empty()) check_checkpoint(checkpoint, inputs.model);
  return inputs;
}

void run_training(Fabric& fabric, const RunInputs& inputs) {
  const Config& config = inputs.config;
  check_run(inputs, fabric.world_size());
  std::string checkpoint = checkpoint_to_resume(config.checkpoint);
  Trainer trainer(fabric, inputs);
  if (!checkpoint.empty()) load_checkpoint(checkpoint, trainer);
  const int64_t first = trainer.next_step(), steps = config.train.steps;
  // No rank goes on to write before all have read what they start from.
  fabric.barrier("start of the run");
  if (first >= steps && fabric.rank() == 0)
    log_info("nothing to do: {} is at step {} of {}", checkpoint, first, steps);
  if (first >= steps) return;
  std::optional<Reporter> reporter;
  for (int64_t step = first; step < steps; ++step) {
    StepMetrics metrics;
    try {
      metrics = trainer.step();
    } catch (const NotFinite& error) {
      throw Error(format("{}; {}", error.what(), last_good(checkpoint)));
    }
    if (fabric.rank() == 0) {
      if (!reporter) reporter.emplace(inputs, first);
      reporter->report(metrics);
    }
    if (!checkpoint_is_due(config, step + 1)) continue;
    if (fabric.rank() == 0) {
      try {
        checkpoint = save_checkpoint(config.checkpoint, trainer);
      } catch (const Error& error) {
        throw Error(format("the checkpoint of step {} could not be written: {}; {}", step + 1, error.what(),
                           last_good(checkpoint)));
      }
    } else {
      checkpoint = checkpoint_folder(config.checkpoint, step + 1);
    }
  }
}

}  // namespace distca
