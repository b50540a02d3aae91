#include "train/exact_modes.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace distca::testing {
namespace {

constexpr int32_t kMostRanks = 8;

}  // namespace

int32_t ExactMode::dp() const {
  int32_t dp = 0;
  for (int32_t next = 1; (next * pp + servers) * tp <= kMostRanks; next *= 2) dp = next;
  return dp;
}

int32_t ExactMode::ranks() const {
  return dp() == 0 ? 0 : static_cast<int32_t>((dp() * pp + servers) * tp);
}

std::string ExactMode::name() const {
  std::string out = format("{}, {}, tp {}, pp {}, servers {}, {}, {} micro-batches", overlap, memory, tp, pp,
                           servers, layout, micro_batches);
  if (recompute != "none") out += ", recompute " + recompute;
  if (schedule != "same_phase") out += ", " + schedule;
  if (policy != "cad") out += ", " + policy + format(" cp {}", cp);
  if (graphs) out += ", graphs";
  if (!stage_layers.empty()) out += ", uneven stages";
  return out + format(" on {} ranks", ranks());
}

std::vector<ExactMode> all_exact_modes() {
  std::vector<ExactMode> modes;
  for (const char* overlap : {"pingpong", "single"})
    for (const char* memory : {"keep", "resend"})
      for (const int64_t tp : {1, 2})
        for (const int64_t pp : {1, 2, 4})
          for (const int64_t servers : {0, 1})
            for (const char* layout : {"fixed", "free"})
              for (const int64_t micro_batches : {1, 3}) {
                const ExactMode mode{overlap, memory, tp, pp, servers, layout, micro_batches};
                if (mode.ranks() > 0) modes.push_back(mode);
              }
  return modes;
}

RunInputs exact_run(const ExactMode& mode, const std::string& dtype) {
  RunInputs inputs = small_run(dtype);
  LlamaConfig& model = inputs.model;
  model.vocab_size = 62, model.hidden_size = 64, model.intermediate_size = 96;
  model.num_hidden_layers = 4, model.num_attention_heads = 4, model.num_key_value_heads = 2;
  model.head_dim = 16;
  Config& config = inputs.config;
  config.train.micro_batches = mode.micro_batches;
  config.train.tokens_per_batch = mode.micro_batches * config.train.nano_batches * 1024;
  config.train.steps = 3;
  config.train.lr = 1e-3, config.train.min_lr = 1e-4;
  config.attention.overlap = mode.overlap;
  config.attention.memory = mode.memory;
  config.attention.graphs = mode.graphs;
  config.attention.layout = mode.layout;
  config.attention.search = 50;
  config.attention.policy = mode.policy;
  config.parallel.cp = mode.cp;
  config.parallel.tp = mode.tp;
  config.parallel.pp = mode.pp;
  config.parallel.servers = mode.servers;
  config.parallel.recompute = mode.recompute;
  config.parallel.schedule = mode.schedule;
  config.parallel.stage_layers = mode.stage_layers;
  // The longest lie over three ranks and more where four share 1,024 rows.
  const std::vector<int64_t> lengths = {700, 1, 300, 400, 1,   290, 37,  650, 310, 2,
                                        395, 1, 128, 256, 129, 811, 601, 3,   511};
  inputs.source = random_documents(lengths, model.vocab_size, 3);
  return inputs;
}

Distance distance(const RunResult& run, const RunResult& dense) {
  DISTCA_CHECK(run.losses.size() == dense.losses.size() && run.gradients.size() == dense.gradients.size(),
               "{} steps and {} gradients, not {} and {}", run.losses.size(), run.gradients.size(),
               dense.losses.size(), dense.gradients.size());
  Distance out;
  const auto raise = [](double& most, double value) {
    most = std::isnan(value) ? INFINITY : std::max(most, value);
  };
  for (size_t step = 0; step < run.losses.size(); ++step)
    raise(out.loss, std::abs(run.losses[step] - dense.losses[step]));
  for (size_t i = 0; i < run.gradients.size(); ++i) {
    const at::Tensor& expected = dense.gradients[i].tensor;
    DISTCA_CHECK(run.gradients[i].name == dense.gradients[i].name, "gradients of {} and of {}",
                 run.gradients[i].name, dense.gradients[i].name);
    raise(out.gradient, ((run.gradients[i].tensor - expected).norm() / expected.norm()).item<double>());
  }
  return out;
}

}  // namespace distca::testing
