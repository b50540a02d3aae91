#include "cli/cluster_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

#include "base/check.h"
#include "cli/simulated_keys.h"

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
    {"--memory", "attention.memory", "auto, keep or resend"},
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

/// "--gpus" for "cluster.gpus".
std::string flag_of_key(const std::string& key) {
  if (key == "cluster.profile") return "--profile";
  for (const auto& flag : kFlags) {
    if (key == flag.key) return flag.flag;
  }
  return "";
}

/// The whole number that `value` is, or `otherwise`.
int64_t whole_or(const std::string& value, int64_t otherwise) {
  int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  return error == std::errc() && stop == end ? number : otherwise;
}

/// "--sweep gpus=8" or "--gpus 8": where a setting was given.
std::string place_of(const std::string& key, const std::string& value, bool is_swept) {
  const std::string flag = flag_of_key(key);
  return is_swept ? "--sweep " + flag.substr(2) + "=" + value : flag + " " + value;
}

Config read_settings(const std::string& file, const std::vector<std::string>& overrides) {
  return file.empty() ? parse_config(kDefaults, "simulate", overrides) : read_config(file, overrides);
}

/// Reading an override says "--set key=value: …": that becomes the option which the user typed.
std::string as_typed(std::string message, const Settings& settings, const Settings& swept) {
  for (const auto& [key, value] : settings) {
    const std::string place = "--set " + key + "=" + value + ": ";
    if (!message.starts_with(place)) continue;
    message = message.substr(place.size());
    for (const std::string& known : {key + " = " + value + " ", key + " = \"" + value + "\" ", key + " "}) {
      if (!message.starts_with(known)) continue;
      message = message.substr(known.size());
      break;
    }
    return place_of(key, value, swept.count(key) > 0) + ": " + message;
  }
  if (message.find("data.path is not given") == std::string::npos) return message;
  return "cluster.gpus is 0: at least 1 device is needed (--gpus)";
}

}  // namespace

int64_t ClusterFlags::tokens_of(const Settings& settings) const {
  DISTCA_CHECK_INPUT(*tokens_per_gpu > 0, "--tokens-per-gpu {}: at least 1 is needed", *tokens_per_gpu);
  DISTCA_CHECK_INPUT(settings.count("train.tokens_per_batch") == 0,
                     "--tokens-per-gpu and --tokens both say how many tokens a step has: give one");
  const auto given = settings.find("cluster.gpus");
  const int64_t gpus =
      given != settings.end() ? whole_or(given->second, 0) : read_settings(config, set).cluster.gpus;
  int64_t tokens = 0;
  DISTCA_CHECK_INPUT(!__builtin_mul_overflow(*tokens_per_gpu, gpus, &tokens),
                     "--tokens-per-gpu {}: too many on {} gpus", *tokens_per_gpu, gpus);
  return tokens;
}

Config ClusterFlags::configuration(const Settings& swept) const {
  Settings settings = flags;
  if (!profile.empty()) settings["cluster.profile"] = "\"" + profile + "\"";
  for (const auto& [key, value] : swept) settings[key] = value;
  const auto gpus = settings.find("cluster.gpus");
  DISTCA_CHECK_INPUT(gpus == settings.end() || whole_or(gpus->second, 1) >= 1,
                     "{}: at least 1 device is needed",
                     place_of("cluster.gpus", gpus->second, swept.count("cluster.gpus") > 0));
  std::vector<std::string> overrides = set;
  for (const auto& [key, value] : settings) overrides.push_back(key + "=" + value);
  try {
    const bool gpus_known = gpus == settings.end() || whole_or(gpus->second, 0) > 0;
    if (tokens_per_gpu.has_value() && gpus_known) {
      overrides.push_back("train.tokens_per_batch=" + std::to_string(tokens_of(settings)));
    }
    const Config result = read_settings(config, overrides);
    check_simulated(result, set);
    return result;
  } catch (const InputError& error) {
    throw InputError(as_typed(error.what(), settings, swept));
  }
}

void add_cluster_flags(CLI::App& command, ClusterFlags& flags) {
  Config defaults = parse_config(kDefaults, "simulate");
  const std::vector<ConfigKey> keys = config_keys(defaults);
  command.add_option("--config", flags.config,
                     "configuration file; the options below override its keys, and defaults are those of "
                     "docs/configuration.md instead of the ones shown");
  command.add_option("--set", flags.set, "section.key=value, overrides the file's");
  for (const auto& flag : kFlags) {
    CLI::Option* option = command.add_option_function<std::string>(
        flag.flag, [&flags, key = flag.key](const std::string& value) { flags.flags[key] = value; },
        flag.meaning);
    for (const ConfigKey& key : keys) {
      if (key.full_name() != flag.key) continue;
      std::string shown = toml_text(key.slot);
      std::erase(shown, '"');
      option->default_str(shown);
    }
  }
  command.add_option("--tokens-per-gpu", flags.tokens_per_gpu,
                     "tokens of a step ÷ gpus, instead of --tokens");
  command.add_option("--profile", flags.profile, "h100, h200, or a file (default h200)");
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
