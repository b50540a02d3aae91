#include "cli/simulated_keys.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace distca {
namespace {

/// Keys that bear on a step and aren't modelled, each with what to do instead.
struct Unmodelled {
  std::string_view key, why;
};
constexpr std::string_view kLinks = "links are those of cluster.profile";
constexpr Unmodelled kUnmodelled[] = {
    {"data.split_documents", "documents longer than data.context are an error here"},
    {"data.window", "documents are packed in order"},
    {"model.dtype", "bfloat16 is simulated whatever it says"},
    {"attention.policy", "policies are compared: name them with --policy"},
    {"attention.layout", "a free layout is the policy cad-free: --policy cad-free"},
    {"attention.kernel", "the kernel is that of cluster.profile"},
    {"attention.profile", "costs are those of cluster.profile"},
    {"attention.graphs", "launches of kernels are not modelled"},
    {"parallel.speeds", "devices are equally fast"},
    {"parallel.schedule", "cad runs its stages in one phase, the others 1F1B"},
    {"link.clock", kLinks},
    {"link.latency", kLinks},
    {"link.bandwidth", kLinks},
    {"link.node_latency", kLinks},
    {"link.node_bandwidth", kLinks},
    {"link.ranks_per_node", "nodes are those of cluster.gpus_per_node"},
    {"link.speeds", "devices are equally fast"},
};

/// Keys that a simulation reads.
constexpr std::string_view kModelled[] = {
    "data.path",
    "data.context",
    "model.config",
    "train.tokens_per_batch",
    "train.micro_batches",
    "train.nano_batches",
    "train.seed",
    "attention.tolerance",
    "attention.min_gain",
    "attention.memory",
    "attention.overlap",
    "parallel.tp",
    "parallel.pp",
    "parallel.cp",
    "parallel.servers",
    "parallel.recompute",
    "parallel.memory_limit",
    "parallel.shard_optimizer",
};

bool is_modelled(std::string_view key) {
  return key.starts_with("cluster.") || std::ranges::find(kModelled, key) != std::end(kModelled);
}

/// bfloat16 is what is simulated.
bool is_as_simulated(const ConfigKey& key, const std::string& value, const std::string& standard) {
  return value == standard || (key.full_name() == "model.dtype" && value == "\"bfloat16\"");
}

}  // namespace

void check_simulated(const Config& config, const std::vector<std::string>& set) {
  Config given = config, defaults;
  const std::vector<ConfigKey> keys = config_keys(given), usual = config_keys(defaults);
  for (const Unmodelled& entry : kUnmodelled) {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].full_name() != entry.key) continue;
      const std::string value = toml_text(keys[i].slot), standard = toml_text(usual[i].slot);
      DISTCA_CHECK_INPUT(is_as_simulated(keys[i], value, standard),
                         "{} = {}: not modelled by the simulator ({}); it takes {}", entry.key, value,
                         entry.why, standard);
    }
  }
  for (const std::string& setting : set) {
    const std::string key = setting.substr(0, setting.find('='));
    const bool known =
        is_modelled(key) || std::ranges::find(kUnmodelled, key, &Unmodelled::key) != std::end(kUnmodelled);
    DISTCA_CHECK_INPUT(known, "--set {}: {} doesn't enter a simulation; docs/simulation.md lists what does",
                       setting, key);
  }
}

}  // namespace distca
