#include "sim/cluster.h"

#include <charconv>

#include "base/check.h"

namespace distca {

std::string PolicyChoice::name() const {
  if (policy == Policy::kCad || policy == Policy::kNone) {
    return name_of(policy) + (layout == LayoutKind::kFree ? "-free" : "");
  }
  return format("{}-{}", name_of(policy), cp);
}

PolicyChoice policy_choice(const std::string& name, int64_t cp) {
  if (name == "cad-free") return {Policy::kCad, LayoutKind::kFree, 1};
  PolicyChoice choice;
  choice.cp = cp;
  const size_t dash = name.find_last_of('-');
  const char* const end = name.data() + name.size();
  std::string policy = name;
  if (dash != std::string::npos && std::from_chars(name.data() + dash + 1, end, choice.cp).ptr == end &&
      dash + 1 < name.size()) {
    policy = name.substr(0, dash);
  }
  choice.policy = policy_named(policy);
  const bool has_degree = choice.policy != Policy::kCad && choice.policy != Policy::kNone;
  DISTCA_CHECK_INPUT(has_degree || policy == name, "policy '{}': {} has no degree", name, policy);
  if (!has_degree) choice.cp = 1;
  DISTCA_CHECK_INPUT(choice.cp >= 1, "policy '{}': a degree of {} is below 1", name, choice.cp);
  return choice;
}

void check_cluster(const ClusterSetup& s) {
  DISTCA_CHECK_INPUT(s.gpus >= 1 && s.tp >= 1 && s.pp >= 1 && s.gpus_per_node >= 1,
                     "gpus {}, tp {}, pp {}, gpus_per_node {}: all must be at least 1", s.gpus, s.tp, s.pp,
                     s.gpus_per_node);
  DISTCA_CHECK_INPUT(s.model.heads % s.tp == 0,
                     "{} has {} heads: a tensor-parallel degree of {} doesn't divide them", s.model.name,
                     s.model.heads, s.tp);
  DISTCA_CHECK_INPUT(s.gpus_per_node % s.tp == 0,
                     "a tensor-parallel degree of {} doesn't divide a node's {} gpus", s.tp, s.gpus_per_node);
  DISTCA_CHECK_INPUT(
      s.gpus % s.tp == 0 && s.gpus / s.tp > s.servers && (s.gpus / s.tp - s.servers) % s.pp == 0,
      "{} gpus are not (data-parallel ranks × pp {} + {} servers) × tp {}", s.gpus, s.pp, s.servers, s.tp);
  DISTCA_CHECK_INPUT(s.model.layers % s.pp == 0, "{} has {} layers: {} pipeline stages don't divide them",
                     s.model.name, s.model.layers, s.pp);
  DISTCA_CHECK_INPUT(s.context >= 1 && s.micro_batches >= 1 && s.nano_batches >= 1,
                     "context {}, micro_batches {}, nano_batches {}: all must be at least 1", s.context,
                     s.micro_batches, s.nano_batches);
  const int64_t parts = s.micro_batches * s.nano_batches;
  DISTCA_CHECK_INPUT(s.tokens >= 1 && s.tokens % (parts * s.context) == 0,
                     "{} tokens are not a multiple of micro_batches {} × nano_batches {} × context {}",
                     s.tokens, s.micro_batches, s.nano_batches, s.context);
  DISTCA_CHECK_INPUT(s.tokens / parts % s.ranks() == 0,
                     "a nano-batch of {} tokens doesn't divide evenly over {} data-parallel ranks",
                     s.tokens / parts, s.ranks());
  DISTCA_CHECK_INPUT(s.tolerance >= 0, "tolerance {} is negative", s.tolerance);
  DISTCA_CHECK_INPUT(
      state_bytes(s) < s.memory_bytes(),
      "{} needs {} GB a device for weights, gradients and optimizer alone at tp {} × pp {}: a {} has {} GB",
      s.model.name, static_cast<int64_t>(state_bytes(s) / 1e9), s.tp, s.pp, s.profile.name,
      static_cast<int64_t>(s.memory_bytes() / 1e9));
}

void check_policy(const ClusterSetup& setup, const PolicyChoice& choice) {
  DISTCA_CHECK_INPUT(setup.ranks() % choice.cp == 0, "policy {}: {} data-parallel ranks are not groups of {}",
                     choice.name(), setup.ranks(), choice.cp);
}

LayerHeads device_heads(const ClusterSetup& setup) {
  return {setup.model.heads / setup.tp, setup.model.kv_heads_of_device(setup.tp), setup.model.head_dim,
          setup.profile.element_bytes};
}

double state_bytes(const ClusterSetup& setup) {
  const double parameters =
      static_cast<double>(setup.model.parameters()) / static_cast<double>(setup.tp * setup.pp);
  const double optimizer = 12.0 / static_cast<double>(setup.shard_optimizer ? setup.ranks() : 1);
  return parameters * (2 + 4 + optimizer);
}

double activation_bytes(const ClusterSetup& setup) {
  const ModelShape& model = setup.model;
  const double hidden = static_cast<double>(model.hidden);
  const double q = static_cast<double>(model.heads * model.head_dim);
  const double kv = static_cast<double>(2 * model.kv_heads * model.head_dim);
  const double kept = setup.recompute == Recompute::kSelective
                          ? 2 * hidden + q
                          : 4 * hidden + 2 * q + kv + 3 * static_cast<double>(model.mlp);
  return 2 * kept / static_cast<double>(setup.tp);
}

}  // namespace distca
