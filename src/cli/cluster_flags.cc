#include "cli/cluster_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/check.h"

namespace distca {
namespace {

/// Flags and the keys they stand for.
constexpr struct {
  const char *flag, *key, *meaning;
} kFlags[] = {
    {"--gpus", "cluster.gpus", "devices"},
    {"--gpus-per-node", "cluster.gpus_per_node", "devices of a node"},
    {"--tp", "parallel.tp", "tensor-parallel degree"},
    {"--pp", "parallel.pp", "pipeline stages"},
    {"--cp", "parallel.cp", "degree of policies named without one"},
    {"--servers", "parallel.servers", "ranks that only serve attention"},
    {"--recompute", "parallel.recompute", "none or selective"},
    {"--model", "model.config", "a preset or a config.json"},
    {"--tokens", "train.tokens_per_batch", "tokens of a step"},
    {"--context", "data.context", "tokens of a chunk, which no document exceeds"},
    {"--micro-batches", "train.micro_batches", "micro-batches of a step"},
    {"--nano-batches", "train.nano_batches", "nano-batches of a micro-batch"},
    {"--distribution", "cluster.distribution",
     "wlbllm, prolong (with -recorded in the recorded runs' order), or a file of lengths"},
    {"--samples", "cluster.samples", "steps to draw"},
    {"--seed", "train.seed", "of the first draw"},
    {"--tolerance", "attention.tolerance", "of disaggregated plans"},
    {"--memory", "attention.memory", "keep or resend"},
    {"--overlap", "attention.overlap", "pingpong, single or signal"},
};

/// What flags change on, where there is no file.
constexpr char kDefaults[] = R"(
[data]
context = 131072
[train]
tokens_per_batch = 2097152
[attention]
tolerance = 0.02
[model]
config = "llama-8b"
[parallel]
tp = 8
recompute = "selective"
shard_optimizer = true
[cluster]
gpus = 64
distribution = "prolong"
)";

}  // namespace

Config ClusterFlags::configuration(const Settings& swept) const {
  Settings settings = flags;
  if (!profile.empty()) settings["cluster.profile"] = "\"" + profile + "\"";
  for (const auto& [key, value] : swept) settings[key] = value;
  if (tokens_per_gpu > 0) {
    const auto gpus = settings.find("cluster.gpus");
    DISTCA_CHECK_INPUT(gpus != settings.end(), "--tokens-per-gpu needs --gpus");
    settings["train.tokens_per_batch"] = std::to_string(tokens_per_gpu * std::atoll(gpus->second.c_str()));
  }
  std::vector<std::string> overrides = set;
  for (const auto& [key, value] : settings) overrides.push_back(key + "=" + value);
  return config.empty() ? parse_config(kDefaults, "simulate", overrides) : read_config(config, overrides);
}

void add_cluster_flags(CLI::App& command, ClusterFlags& flags) {
  command.add_option("--config", flags.config, "configuration file; the options below override its keys");
  command.add_option("--set", flags.set, "section.key=value, overrides the file's");
  for (const auto& flag : kFlags) {
    command.add_option_function<std::string>(
        flag.flag, [&flags, key = flag.key](const std::string& value) { flags.flags[key] = value; },
        flag.meaning);
  }
  command.add_option("--tokens-per-gpu", flags.tokens_per_gpu,
                     "tokens of a step ÷ gpus, instead of --tokens");
  command.add_option("--profile", flags.profile, "h100, h200, or a file");
}

std::string key_of_flag(const std::string& name) {
  for (const auto& flag : kFlags) {
    if ("--" + name == flag.flag) return flag.key;
  }
  return "";
}

void show_simulated_steps(int64_t done, int64_t all) {
  if (::isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r%ld of %ld steps simulated", static_cast<long>(done), static_cast<long>(all));
  if (done == all) std::fputs("\r\033[K", stderr);
}

}  // namespace distca
