#include "cli/simulate_setup.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "base/check.h"
#include "base/json.h"
#include "model/config.h"
#include "sim/machine_profile.h"
#include "train/indexed_dataset.h"

namespace distca {
namespace {

std::vector<int64_t> lengths_in_file(const std::string& path) {
  std::istringstream lines(read_text(path));
  std::vector<int64_t> lengths;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    int64_t length = 0;
    const char* const end = line.data() + line.size();
    const auto parsed = std::from_chars(line.data(), end, length);
    DISTCA_CHECK_INPUT(parsed.ec == std::errc() && parsed.ptr == end && length >= 0,
                       "{}:{}: '{}' is not a document's length: one whole number a line", path, number, line);
    lengths.push_back(length);
  }
  return lengths;
}

std::vector<int64_t> lengths_in_dataset(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < dataset.index().documents(); ++i)
    lengths.push_back(dataset.index().document_length(i));
  return lengths;
}

Overlap overlap_named(const std::string& name) {
  if (name == "single") return Overlap::kSingle;
  return name == "signal" ? Overlap::kSignal : Overlap::kPingPong;
}

/// One of the program's profiles, a file like them, or what `distca profile` measured on a machine for chunks
/// of `rows`.
DeviceProfile profile_named(const std::string& name, const ModelShape& model, int64_t rows) {
  if (name.find_first_of("./") == std::string::npos) return find_device_profile(name);
  const std::string text = read_text(name);
  if (!parse_json(text, name).contains("linear")) return parse_device_profile(text, name);
  const Profile measured = Profile::parse(text, name);
  const int64_t weights = find_model_shape(measured.linear().model).layer_parameters();
  return machine_profile(measured, model, weights, rows);
}

}  // namespace

ModelShape find_model_shape(const std::string& name) {
  const LlamaConfig config = find_llama_config(name);
  return {name,
          config.hidden_size,
          config.num_hidden_layers,
          config.num_attention_heads,
          config.num_key_value_heads,
          config.head_dim,
          config.intermediate_size,
          config.vocab_size,
          config.tie_word_embeddings};
}

ClusterSetup unchecked_setup(const Config& config) {
  ClusterSetup setup;
  setup.model = find_model_shape(config.model.config);
  setup.gpus = config.cluster.gpus;
  setup.gpus_per_node = config.cluster.gpus_per_node;
  setup.tp = config.parallel.tp;
  setup.pp = config.parallel.pp;
  setup.servers = config.parallel.servers;
  setup.tokens = config.train.tokens_per_batch;
  setup.micro_batches = config.train.micro_batches;
  setup.nano_batches = config.train.nano_batches;
  setup.context = config.data.context > 0 ? config.data.context : rows_of_nano_batch(config);
  setup.tolerance = config.attention.tolerance;
  setup.min_gain = config.attention.min_gain;
  setup.resend = !config.keeps_on_server();
  setup.overlap = overlap_named(config.attention.overlap);
  setup.recompute = config.parallel.recompute == "selective" ? Recompute::kSelective : Recompute::kNone;
  setup.shard_optimizer = config.parallel.shard_optimizer;
  setup.memory_limit = static_cast<double>(config.parallel.memory_limit);
  DISTCA_CHECK_INPUT(setup.gpus > 0, "cluster.gpus is not given: the devices of the cluster");
  const int64_t rows = rows_of_nano_batch(config) / std::max<int64_t>(1, setup.ranks());
  setup.profile = profile_named(config.cluster.profile.empty() ? "h200" : config.cluster.profile, setup.model,
                                std::max<int64_t>(1, rows));
  return setup;
}

ClusterSetup cluster_setup(const Config& config) {
  const ClusterSetup setup = unchecked_setup(config);
  check_cluster(setup);
  return setup;
}

std::vector<PolicyChoice> policy_choices(const ClusterSetup& setup, const Config& config,
                                         const std::vector<std::string>& names) {
  std::vector<PolicyChoice> choices;
  for (const std::string& name : names) choices.push_back(policy_choice(name, config.parallel.cp));
  if (names.empty()) {
    choices.push_back({Policy::kNone, LayoutKind::kFixed, 1});
    for (const Policy policy : {Policy::kCpSeq, Policy::kWlb}) {
      for (int64_t cp = 2; cp <= 16 && setup.ranks() % cp == 0; cp *= 2) {
        choices.push_back({policy, LayoutKind::kFixed, cp});
      }
    }
    choices.push_back({Policy::kCad, LayoutKind::kFixed, 1});
    choices.push_back({Policy::kCad, LayoutKind::kFree, 1});
  }
  for (const PolicyChoice& choice : choices) check_policy(setup, choice);
  return choices;
}

std::vector<StepDocuments> study_documents(const ClusterSetup& setup, const Config& config) {
  const std::string& name = config.cluster.distribution;
  const int64_t samples = config.cluster.samples;
  if (name.empty()) {
    DISTCA_CHECK_INPUT(!config.data.path.empty(),
                       "neither cluster.distribution nor data.path is given: lengths of documents");
    return packed_documents(setup, lengths_in_dataset(config.data.path), samples, config.data.path);
  }
  if (name.find_first_of("./") != std::string::npos) {
    return packed_documents(setup, lengths_in_file(name), samples, name);
  }
  if (name.ends_with("-recorded")) {
    const Distribution distribution = distribution_named(name.substr(0, name.size() - 9));
    return recorded_steps(setup, distribution, samples, static_cast<uint64_t>(config.train.seed));
  }
  const Distribution distribution = distribution_named(name);
  std::vector<StepDocuments> draws;
  for (int64_t i = 0; i < samples; ++i) {
    draws.push_back(drawn_documents(setup, distribution, static_cast<uint64_t>(config.train.seed + i)));
  }
  return draws;
}

}  // namespace distca
