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

#include "base/check.h"
#include "base/file.h"
#include "cli/commands.h"
#include "comm/mpi.h"
#include "comm/threads.h"
#include "train/config.h"
#include "train/outputs.h"
#include "train/run.h"
#include "train/stop_signal.h"

namespace distca {
namespace {

constexpr int kStopped = 128 + SIGTERM;  // as a shell shows a process that the signal ended

struct TrainOptions {
  std::string config;
  std::vector<std::string> settings;
  int32_t ranks = 0;
  std::string json;
  bool keys = false;
};

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

void check_summary_path(const std::string& path) {
  if (path.empty() || path == "-") return;
  check_output_path("--json", path);
  probe_output("--json", path);
}

void write_summary(const RunSummary& summary, const std::string& path) {
  if (path.empty()) return;
  if (path != "-") return write_file_atomically(path, summary.json());
  std::fputs(summary.json().c_str(), stdout);
}

void run_as_mpi_rank(const TrainOptions& options) {
  // Whatever is wrong is said once: by the job, with all ranks stopped.
  bool stopped = false;
  const auto body = [&](Fabric& fabric) {
    const Config config = read_config(options.config, options.settings);
    DISTCA_CHECK_INPUT(options.ranks == 0 || options.ranks == fabric.world_size(),
                       "--ranks {} contradicts the {} ranks of the MPI job", options.ranks,
                       fabric.world_size());
    check_links_not_given(config);
    set_compute_threads(config, mpi_ranks_here());
    if (fabric.rank() == 0) check_summary_path(options.json);
    const RunSummary summary = run_training(fabric, read_inputs(config));
    stopped = summary.stopped;
    if (fabric.rank() == 0) write_summary(summary, options.json);
  };
  FabricOptions fabric;
  try {
    fabric.timeout_s = read_config(options.config, options.settings).parallel.timeout;
  } catch (const InputError&) {
    // The body meets it again, and the job reports it.
  }
  const int code = run_mpi_rank(fabric, body);
  if (code != 0 || stopped) std::exit(code != 0 ? code : kStopped);
}

void train(const TrainOptions& options) {
  if (options.keys) {
    std::fputs(config_table().c_str(), stdout);
    return;
  }
  DISTCA_CHECK_INPUT(!options.config.empty(), "train needs --config FILE.toml");
  catch_stop_signal();
  if (launched_by_mpi()) return run_as_mpi_rank(options);
  const Config config = read_config(options.config, options.settings);
  check_summary_path(options.json);
  const RunInputs inputs = read_inputs(config);
  const int32_t ranks = std::max(1, options.ranks);
  set_compute_threads(config, ranks);
  RunSummary summary;
  run_thread_ranks(ranks, fabric_options(config), [&](Fabric& fabric) {
    const RunSummary of_rank = run_training(fabric, inputs);
    if (fabric.rank() == 0) summary = of_rank;
  });
  write_summary(summary, options.json);
  if (summary.stopped) std::exit(kStopped);
}

}  // namespace

void add_train_command(CLI::App& program) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = program.add_subcommand("train", "train a Llama model on a dataset");
  command->add_option("--config", options->config, "TOML file; docs/configuration.md lists the keys");
  command
      ->add_option(
          "--ranks", options->ranks,
          "ranks, as threads of this process (default 1); under mpirun the job's processes are the ranks")
      ->check(CLI::Range(1, 4096));
  command->add_option("--set", options->settings, "section.key=value, over what the file says")
      ->allow_extra_args(false);
  command->add_option("--json", options->json, "write what the run did to this file; - is standard output");
  command->add_flag("--keys", options->keys, "print the table of configuration keys and exit");
  command->callback([options] { train(*options); });
}

}  // namespace distca
