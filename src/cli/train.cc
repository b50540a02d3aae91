// `distca train`
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attend/device.h"
#include "attend/live_bytes.h"
#include "base/check.h"
#include "base/file.h"
#include "base/heap.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "train/config.h"
#include "train/outputs.h"
#include "train/recorded_step.h"
#include "train/run.h"
#include "train/stop_signal.h"
#include "train/survivors.h"

namespace distca {
namespace {

constexpr int kStopped = 128 + SIGTERM;  // as a shell shows a process that the signal ended

struct TrainOptions {
  std::string config;
  std::vector<std::string> settings;
  int32_t ranks = 0;
  std::string device, json;
  bool keys = false;
  std::string trace, device_trace, trace_steps, replay;
  int64_t replay_step = -1;
};

/// Throws InputError.
TraceOptions trace_options(const TrainOptions& options) {
  TraceOptions trace;
  trace.path = options.trace;
  trace.device_path = options.device_trace;
  DISTCA_CHECK_INPUT(options.trace_steps.empty() || !trace.path.empty() || !trace.device_path.empty(),
                     "--trace-steps {} needs --trace FILE", options.trace_steps);
  if (!options.trace_steps.empty()) parse_trace_steps(options.trace_steps, trace);
  return trace;
}

/// Ranks of an MPI job on this machine, or 0 where the launcher doesn't say.
int mpi_ranks_here() {
  const char* text = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return text == nullptr ? 0 : std::atoi(text);
}

/// Throws InputError for keys of [link] that are given, under MPI.
void check_links_not_given(const Config& config) {
  for (const auto& [key, place] : config.places) {
    DISTCA_CHECK_INPUT(key.rfind("link.", 0) != 0,
                       "{}: {} is for ranks that are threads; MPI ranks have the links of their machines",
                       place, key);
  }
}

FabricOptions fabric_options(const Config& config) {
  FabricOptions options;
  options.timeout_s = config.parallel.timeout;
  LinkOptions& link = options.link;
  if (config.link.clock == "virtual") link.clock = LinkOptions::Clock::kVirtual;
  link.latency = config.link.latency;
  link.bandwidth = config.link.bandwidth;
  link.node_latency = config.link.node_latency;
  link.node_bandwidth = config.link.node_bandwidth;
  link.ranks_per_node = config.link.ranks_per_node;
  return options;
}

/// Thread ranks go on without dedicated servers that are lost, as long as others do their work.
void let_servers_be_lost(const Config& config, int32_t ranks, FabricOptions& options) {
  if (config.parallel.servers == 0) return;
  options.can_lose = [config, ranks](const std::vector<int32_t>& lost) {
    return can_go_on_without(grid_of(config, ranks), lost);
  };
}

void set_compute_threads(const Config& config, int ranks_here) {
  if (config.link.clock == "virtual") {
    DISTCA_CHECK_INPUT(
        config.parallel.threads <= 1,
        "{}parallel.threads = {}: link.clock = \"virtual\" counts the CPU time of a rank's one "
        "thread; leave it out",
        at_key(config, "parallel.threads"), config.parallel.threads);
    return at::set_num_threads(1);
  }
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int share = std::max(1, cores / std::max(1, ranks_here));
  at::set_num_threads(config.parallel.threads > 0 ? static_cast<int>(config.parallel.threads) : share);
}

void check_output(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  check_output_path(option, path);
  probe_output(option, path);
}

void check_outputs(const TrainOptions& options) {
  if (options.json != "-") check_output("--json", options.json);
  check_output("--trace", options.trace);
  check_output("--device-trace", options.device_trace);
}

void write_summary(const RunSummary& summary, const std::string& path) {
  if (path.empty()) return;
  if (path != "-") return write_file_atomically(path, summary.json());
  std::fputs(summary.json().c_str(), stdout);
}

/// What a rank needs before it is one. What is wrong with the configuration is said later, by the job.
struct LaunchSettings {
  at::DeviceType device = at::kCPU;
  double timeout_s = FabricOptions().timeout_s;
};

LaunchSettings launch_settings(const TrainOptions& options) {
  if (options.config.empty()) return {};
  try {
    const Config config = read_config(options.config, options.settings);
    return {device_type_of(config.train.device), config.parallel.timeout};
  } catch (const InputError&) {
    return {};
  }
}

void run_as_launched_rank(const TrainOptions& options, const LaunchSettings& settings) {
  // Whatever is wrong is said once: by the job, with all ranks stopped.
  bool stopped = false;
  const auto body = [&](Fabric& fabric) {
    const Config config = read_config(options.config, options.settings);
    DISTCA_CHECK_INPUT(options.ranks == 0 || options.ranks == fabric.world_size(),
                       "--ranks {} contradicts the {} ranks of the job", options.ranks, fabric.world_size());
    check_links_not_given(config);
    set_compute_threads(config, mpi_ranks_here());
    if (fabric.rank() == 0) check_outputs(options);
    RunInputs inputs = read_inputs(config);
    inputs.trace = trace_options(options);
    if (!inputs.device.is_cpu()) show_spans_to_profilers();
    const RunSummary summary = run_training(fabric, inputs);
    stopped = summary.stopped;
    if (fabric.rank() == 0) write_summary(summary, options.json);
  };
  FabricOptions fabric;
  fabric.timeout_s = settings.timeout_s;
  const int code = run_launched_rank(settings.device, fabric, body);
  if (code != 0 || stopped) std::exit(code != 0 ? code : kStopped);
}

/// What thread ranks run: the configured run, or a recorded step.
Replay read_run(const TrainOptions& options) {
  if (options.replay.empty()) return {read_inputs(read_config(options.config, options.settings)), 1, 0};
  Replay replay = read_replay(options.replay, options.replay_step, options.settings);
  check_inputs(replay.inputs);
  return replay;
}

void say_whether_replayed(const Replay& replay, const RunSummary& summary) {
  log_info(summary.digest == replay.digest
               ? "the plans are those of the recorded step"
               : "the plans are others than in the recorded step: what they depend on was changed");
}

/// PyTorch has one autograd thread for a device, in which one rank's backward would wait for the other's.
void check_shared_device(const RunInputs& inputs) {
  DISTCA_CHECK_INPUT(inputs.device.is_cpu() || inputs.config.parallel.tp == 1,
                     "parallel.tp = {}: ranks that are threads share one device, and tensor-parallel ranks "
                     "can't; start them with torchrun, mpirun or srun, a GPU each",
                     inputs.config.parallel.tp);
}

void run_as_thread_ranks(const TrainOptions& options) {
  const TraceOptions trace = trace_options(options);
  Replay run = read_run(options);
  run.inputs.trace = trace;
  const Config& config = run.inputs.config;
  check_outputs(options);
  const int32_t ranks = options.ranks > 0 ? options.ranks : run.ranks;
  set_compute_threads(config, ranks);
  RunSummary summary;
  enable_live_bytes();
  if (!run.inputs.device.is_cpu()) show_spans_to_profilers();
  FabricOptions fabric = fabric_options(config);
  let_servers_be_lost(config, ranks, fabric);
  check_shared_device(run.inputs);
  run_ranks_as_threads(ranks, run.inputs.device, fabric, config.link.speeds, [&](Fabric& fabric) {
    const RunSummary of_rank = run_training(fabric, run.inputs);
    if (fabric.rank() == 0) summary = of_rank;
  });
  if (!options.replay.empty()) say_whether_replayed(run, summary);
  write_summary(summary, options.json);
  if (summary.stopped) std::exit(kStopped);
}

void train(const TrainOptions& options) {
  if (options.keys) {
    std::fputs(config_table().c_str(), stdout);
    return;
  }
  DISTCA_CHECK_INPUT(options.config.empty() != options.replay.empty(),
                     "train needs --config FILE.toml, or --replay FILE, and not both");
  DISTCA_CHECK_INPUT(options.replay_step < 0 || !options.replay.empty(), "--replay-step needs --replay FILE");
  keep_freed_memory();
  catch_stop_signal();
  const LaunchSettings settings = launch_settings(options);
  if (!launched_as_rank(settings.device)) return run_as_thread_ranks(options);
  DISTCA_CHECK_INPUT(options.replay.empty(), "--replay runs on ranks that are threads, not under a launcher");
  run_as_launched_rank(options, settings);
}

}  // namespace

void add_train_command(CLI::App& program) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = program.add_subcommand("train", "train a Llama model on a dataset");
  command->add_option("--config", options->config, "TOML file; docs/configuration.md lists the keys");
  command
      ->add_option("--ranks", options->ranks,
                   "ranks, as threads of this process (default 1); under mpirun, srun or torchrun the job's "
                   "processes are "
                   "the ranks")
      ->check(CLI::Range(1, 4096));
  command->add_option("--set", options->settings, "section.key=value, over what the file says")
      ->allow_extra_args(false);
  command->add_option("--device", options->device, "cpu or cuda: the same as --set train.device=");
  command->add_option("--json", options->json, "write what the run did to this file; - is standard output");
  command->add_option("--trace", options->trace,
                      "write what every rank did when to this file: a Chrome trace (opens in Perfetto)");
  command->add_option("--device-trace", options->device_trace,
                      "write what rank 0's device did, kernel by kernel, to this file: a Chrome trace too");
  command->add_option("--trace-steps", options->trace_steps,
                      "steps in the trace: A:B, or one (default: the first two that are run)");
  command->add_option("--replay", options->replay,
                      "run a step that --trace recorded in this file, with tokens drawn from the seed");
  command->add_option("--replay-step", options->replay_step, "which of them (default: the first)")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--keys", options->keys, "print the table of configuration keys and exit");
  command->callback([options] {
    if (!options->device.empty()) options->settings.push_back("train.device=" + options->device);
    train(*options);
  });
}

}  // namespace distca
