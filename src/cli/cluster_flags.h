// The options that describe a cluster, shared by the commands that simulate one. Each is a key of the
// configuration.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/config.h"

namespace CLI {
class App;
}

namespace distca {

/// Configuration keys and their values as TOML.
using Settings = std::map<std::string, std::string>;

struct ClusterFlags {
  std::string config, profile;
  std::vector<std::string> set;
  Settings flags;
  std::optional<int64_t> tokens_per_gpu;

  /// The file or the defaults, with --set, then the flags, then `swept` on top. Throws InputError that names
  /// the option at fault.
  Config configuration(const Settings& swept = {}) const;

 private:
  int64_t tokens_of(const Settings& settings) const;
};

/// `flags` must outlive the command.
void add_cluster_flags(CLI::App& command, ClusterFlags& flags);

/// "gpus" -> "cluster.gpus"; empty for a name that no option has.
std::string key_of_flag(const std::string& name);

/// One line that is rewritten on a terminal; nothing elsewhere.
void show_simulated_steps(int64_t done, int64_t all);

}  // namespace distca
