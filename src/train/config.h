// The configuration of a run: a TOML file whose keys can be overridden one by one on the command line. Every
// key stands once in the table of config_keys.cc with its type, default, limits and meaning; reading,
// checking and the documentation all go by that table. An unknown or mistyped key is an error that names the
// file, the line and the nearest key there is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace distca {

/// A list of speeds, or that they are to be measured.
struct SpeedSetting {
  std::vector<double> given;
  bool measured = false;

  friend bool operator==(const SpeedSetting&, const SpeedSetting&) = default;
};

/// Defaults are those of the documentation; 0 and "" mean "not given" where the table says so.
struct Config {
  struct Data {
    std::string path;
    int64_t context = 0;
    bool split_documents = false;
    int64_t window = 256;
  } data;
  struct Model {
    std::string config;
    std::string weights;
    std::string dtype = "float32";
  } model;
  struct Train {
    int64_t steps = 100;
    int64_t tokens_per_batch = 8192;
    int64_t micro_batches = 1;
    int64_t nano_batches = 2;
    int64_t seed = 0;
    double lr = 3e-4;
    double min_lr = 3e-5;
    int64_t warmup = 10;
    double weight_decay = 0.1;
    double clip = 1;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    std::string device = "cpu";
    std::string metrics;
  } train;
  struct Attention {
    std::string policy = "cad";
    std::string layout = "fixed";
    double tolerance = 0.1;
    double min_gain = 0;
    int64_t search = 5000;
    std::string memory = "auto";
    std::string overlap = "pingpong";
    std::string kernel = "auto";
    std::string profile;
    bool graphs = false;
  } attention;
  struct Parallel {
    int64_t tp = 1;
    int64_t pp = 1;
    int64_t cp = 1;
    std::vector<double> stage_layers;
    SpeedSetting speeds;
    int64_t servers = 0;
    std::string recompute = "none";
    std::string schedule = "same_phase";
    bool shard_optimizer = false;
    int64_t memory_limit = 0;
    double timeout = 60;
    int64_t threads = 0;
  } parallel;
  struct Link {
    std::string clock = "wall";
    double latency = 0;
    double bandwidth = 0;
    double node_latency = 0;
    double node_bandwidth = 0;
    int64_t ranks_per_node = 0;
    std::vector<double> speeds;
  } link;
  struct Checkpoint {
    std::string dir;
    int64_t every = 0;
    int64_t keep = 2;
    std::string resume;
  } checkpoint;
  struct Cluster {
    int64_t gpus = 0;
    int64_t gpus_per_node = 8;
    std::string profile;
    std::string distribution;
    int64_t samples = 8;
  } cluster;

  /// Where each key that was given was: "run.toml:7" or "--set train.steps=3", by its full name.
  std::map<std::string, std::string> places;

  /// Whether servers keep Q, K, V for backward: what attention.memory says or, by itself, unless stages share
  /// exchanges. Then a backward tick holds other micro-batches than any forward tick, and can only be
  /// balanced by a plan of its own.
  bool keeps_on_server() const {
    const bool stages_share = parallel.pp > 1 && parallel.schedule == "same_phase";
    return attention.memory == "keep" || (attention.memory == "auto" && !stages_share);
  }
};

/// A place in a Config, by the type of value it holds.
using ConfigSlot = std::variant<bool*, int64_t*, double*, std::string*, std::vector<double>*, SpeedSetting*>;

/// One key: where its value goes, which values it takes, and what it means.
struct ConfigKey {
  std::string section, name;
  ConfigSlot slot;
  std::string meaning;
  double least, most;                // of numbers, both included
  std::vector<std::string> choices;  // of texts; empty takes any

  std::string full_name() const { return section + "." + name; }
};

/// All keys in the order of the documentation, their slots inside `config`.
std::vector<ConfigKey> config_keys(Config& config);

/// Reads a TOML file, then applies `overrides`, each "section.key=value" with the value as TOML has it (texts
/// may go without quotes). Throws InputError with file, line and key for what is wrong, and for values that
/// contradict each other.
Config read_config(const std::string& path, const std::vector<std::string>& overrides = {});
Config parse_config(std::string_view text, const std::string& origin,
                    const std::vector<std::string>& overrides = {});

/// "run.toml:7: ", to open a message about a key with; "" where the key was not given.
std::string at_key(const Config& config, const std::string& key);

/// Rows of one nano-batch over all ranks.
int64_t rows_of_nano_batch(const Config& config);

/// The value of a slot as TOML writes it.
std::string toml_text(const ConfigSlot& slot);

/// The keys as the Markdown table of docs/configuration.md.
std::string config_table();

}  // namespace distca
