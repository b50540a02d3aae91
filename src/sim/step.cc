#include "sim/step.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "sim/layers.h"
#include "sim/memory.h"
#include "sim/step_plans.h"

namespace distca {
namespace {

using Times = std::vector<double>;

/// Seconds in which a stage hands its activations to the next, which has the same rows.
double hand_over_seconds(const ClusterSetup& setup) {
  if (setup.pp == 1) return 0;
  const double rows = static_cast<double>(setup.tokens / setup.micro_batches / setup.ranks());
  const double bytes = rows * 2 * static_cast<double>(setup.model.hidden) / static_cast<double>(setup.tp);
  return setup.profile.inter.latency + bytes / setup.profile.inter.bytes_per_second;
}

Pass pass_of(const ClusterSetup& setup, bool backward, bool free_exchanges) {
  Pass pass;
  pass.backward = backward;
  pass.free_exchanges = free_exchanges;
  pass.layers = setup.model.layers / setup.pp;
  return pass;
}

/// All stages are in the same phase: forward ticks fill the pipeline, then forward and backward alternate.
class SamePhaseSchedule {
 public:
  SamePhaseSchedule(const ClusterSetup& setup, const StepCosts& costs, const DisaggregatedPlans& plans,
                    bool free_exchanges, Timeline& timeline)
      : setup_(setup),
        costs_(costs),
        plans_(plans),
        free_exchanges_(free_exchanges),
        timeline_(timeline),
        ready_(static_cast<size_t>(setup.all_ranks()), 0.0) {}

  void run() {
    const auto ticks = static_cast<int64_t>(plans_.forward.size());
    const int64_t ahead = setup_.pp == 1 ? 1 : std::min(setup_.pp, ticks);
    for (int64_t tick = 0; tick < ticks + ahead - 1; ++tick) {
      if (tick < ticks) run_tick(false, tick);
      if (tick >= ahead - 1) run_tick(true, tick - ahead + 1);
    }
  }

 private:
  void run_tick(bool backward, int64_t tick) {
    const auto& ticks = backward && setup_.pp > 1 ? plans_.backward : plans_.forward;
    std::vector<const PartWork*> parts;
    for (const PartWork& part : ticks[static_cast<size_t>(tick)]) parts.push_back(&part);
    Pass pass = pass_of(setup_, backward, free_exchanges_);
    pass.first_part = tick * setup_.nano_batches;
    const Times done = run_disaggregated(setup_, costs_, pass, parts, ready_, timeline_);
    ready_ = hand_over(done, backward);
  }

  /// A stage's next tick needs the activations of the stage before, or the gradients of the one behind.
  Times hand_over(const Times& done, bool backward) const {
    Times ready = done;
    const int64_t ranks = setup_.ranks(), step = backward ? ranks : -ranks;
    const double seconds = free_exchanges_ ? 0 : hand_over_seconds(setup_);
    for (int64_t r = 0; r < ranks * setup_.pp; ++r) {
      const int64_t from = r + step;
      if (setup_.pp == 1 || from < 0 || from >= ranks * setup_.pp) continue;
      ready[static_cast<size_t>(r)] =
          std::max(ready[static_cast<size_t>(r)], done[static_cast<size_t>(from)] + seconds);
    }
    return ready;
  }

  const ClusterSetup& setup_;
  const StepCosts& costs_;
  const DisaggregatedPlans& plans_;
  bool free_exchanges_;
  Timeline& timeline_;
  Times ready_;
};

/// Each stage runs pp - 1 - stage forwards ahead, then one forward and one backward in turn.
class OneForwardOneBackward {
 public:
  OneForwardOneBackward(const ClusterSetup& setup, const StepCosts& costs, int64_t group,
                        const std::vector<PartWork>& micro_batches, bool free_exchanges, Timeline& timeline)
      : setup_(setup),
        costs_(costs),
        group_(group),
        micro_batches_(micro_batches),
        free_exchanges_(free_exchanges),
        timeline_(timeline) {
    const auto stages = static_cast<size_t>(setup.pp), micros = static_cast<size_t>(setup.micro_batches);
    forward_.assign(stages, std::vector<Times>(micros));
    backward_ = forward_;
    last_.assign(stages, Times(static_cast<size_t>(setup.ranks()), 0.0));
  }

  void run() {
    std::vector<int64_t> next(static_cast<size_t>(setup_.pp), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (int64_t stage = 0; stage < setup_.pp; ++stage) {
        int64_t& op = next[static_cast<size_t>(stage)];
        while (op < 2 * setup_.micro_batches && run_op(stage, op)) ++op, progress = true;
      }
    }
  }

 private:
  /// The stage's operation number `op`; false while what it needs isn't done.
  bool run_op(int64_t stage, int64_t op) {
    const int64_t micros = setup_.micro_batches, ahead = std::min(setup_.pp - 1 - stage, micros);
    bool backward = op >= ahead && (op - ahead) % 2 == 1;
    int64_t micro = op < ahead ? op : (op - ahead) / 2 + (backward ? 0 : ahead);
    if (op >= 2 * micros - ahead) backward = true, micro = op - micros;
    const bool edge = backward ? stage == setup_.pp - 1 : stage == 0;
    const auto& before = backward ? (edge ? forward_ : backward_) : forward_;
    const int64_t from = edge ? stage : backward ? stage + 1 : stage - 1;
    Times ready = last_[static_cast<size_t>(stage)];
    if (backward || !edge) {
      const Times& needed = before[static_cast<size_t>(from)][static_cast<size_t>(micro)];
      if (needed.empty()) return false;
      const double seconds = edge || free_exchanges_ ? 0 : hand_over_seconds(setup_);
      for (size_t r = 0; r < ready.size(); ++r) ready[r] = std::max(ready[r], needed[r] + seconds);
    }
    Pass pass = pass_of(setup_, backward, free_exchanges_);
    pass.first_part = micro;
    Times done = run_at_home(costs_, pass, micro_batches_[static_cast<size_t>(micro)], group_,
                             stage * setup_.ranks(), ready, timeline_);
    last_[static_cast<size_t>(stage)] = done;
    (backward ? backward_ : forward_)[static_cast<size_t>(stage)][static_cast<size_t>(micro)] =
        std::move(done);
    return true;
  }

  const ClusterSetup& setup_;
  const StepCosts& costs_;
  int64_t group_;
  const std::vector<PartWork>& micro_batches_;
  bool free_exchanges_;
  Timeline& timeline_;
  std::vector<std::vector<Times>> forward_, backward_;  // [stage][micro-batch]: when it was done
  std::vector<Times> last_;                             // [stage]
};

double max_over_mean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) / sum
                 : 1;
}

/// What is common to all policies once both runs are through.
void fill_result(const ClusterSetup& setup, const Timeline& timeline, StepResult& result) {
  result.busy = timeline.busy();
  result.busy_mean =
      std::accumulate(result.busy.begin(), result.busy.end(), 0.0) / static_cast<double>(setup.all_ranks());
  result.compute_max_over_mean = max_over_mean(result.busy);
  result.memory_max = *std::max_element(result.memory.begin(), result.memory.end());
  result.memory_mean = std::accumulate(result.memory.begin(), result.memory.end(), 0.0) /
                       static_cast<double>(result.memory.size());
}

/// Adds up a passes' exchanges [first, last] by sender and receiver, for all layers.
void add_bytes(const ClusterSetup& setup, const std::vector<std::vector<PartWork>>& ticks, size_t first,
               size_t last, std::vector<std::vector<double>>& bytes) {
  const auto layers = static_cast<double>(setup.model.layers / setup.pp);
  for (const auto& parts : ticks) {
    for (const PartWork& part : parts) {
      for (size_t kind = first; kind <= last; ++kind) {
        for (const ExchangeWork::Flow& flow : part.exchanges[kind].flows) {
          bytes[static_cast<size_t>(flow.from)][static_cast<size_t>(flow.to)] += layers * flow.bytes;
        }
      }
    }
  }
}

std::vector<std::vector<double>> bytes_matrix(const ClusterSetup& setup, const DisaggregatedPlans& plans) {
  const auto ranks = static_cast<size_t>(setup.all_ranks());
  std::vector<std::vector<double>> bytes(ranks, Times(ranks, 0.0));
  add_bytes(setup, plans.forward, 0, 1, bytes);
  add_bytes(setup, setup.pp > 1 ? plans.backward : plans.forward, 2, 3, bytes);
  return bytes;
}

double exchanged_bytes(const ClusterSetup& setup, const DisaggregatedPlans& plans) {
  double bytes = 0;
  const auto add = [&](const std::vector<std::vector<PartWork>>& ticks, size_t first, size_t last) {
    for (const auto& parts : ticks) {
      for (const PartWork& part : parts) {
        for (size_t kind = first; kind <= last; ++kind) bytes += part.exchanges[kind].bytes;
      }
    }
  };
  add(plans.forward, 0, 1);
  add(setup.pp > 1 ? plans.backward : plans.forward, 2, 3);
  return bytes * static_cast<double>(setup.tp * setup.model.layers / setup.pp);
}

StepResult simulate_disaggregated(const ClusterSetup& setup, const PolicyChoice& choice,
                                  const StepDocuments& documents, const StepCosts& costs,
                                  StepDetail* detail) {
  StepResult result;
  const double start = wall_seconds();
  const DisaggregatedPlans plans = plan_disaggregated(setup, choice, documents, costs);
  result.plan_seconds = wall_seconds() - start;
  Timeline ideal(setup.all_ranks(), false), real(setup.all_ranks(), detail != nullptr);
  SamePhaseSchedule(setup, costs, plans, true, ideal).run();
  SamePhaseSchedule(setup, costs, plans, false, real).run();
  result.without_exchanges = ideal.end() + costs.update;
  result.seconds = real.end() + costs.update;
  result.exchanged_bytes = exchanged_bytes(setup, plans);
  result.memory = memory_of_disaggregated(setup, plans);
  std::vector<double> tokens;
  for (const PartWork& part : plans.forward[0])
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
  tokens.resize(static_cast<size_t>(setup.ranks()));
  result.tokens_max_over_mean = max_over_mean(tokens);
  fill_result(setup, real, result);
  if (detail != nullptr) *detail = {real.events(), bytes_matrix(setup, plans)};
  return result;
}

StepResult simulate_at_home(const ClusterSetup& setup, const PolicyChoice& choice,
                            const StepDocuments& documents, const StepCosts& costs, StepDetail* detail) {
  StepResult result;
  const double start = wall_seconds();
  const std::vector<PartWork> micro_batches = plan_at_home(setup, choice, documents);
  result.plan_seconds = wall_seconds() - start;
  Timeline ideal(setup.all_ranks(), false), real(setup.all_ranks(), detail != nullptr);
  OneForwardOneBackward(setup, costs, choice.cp, micro_batches, true, ideal).run();
  OneForwardOneBackward(setup, costs, choice.cp, micro_batches, false, real).run();
  result.without_exchanges = ideal.end() + costs.update;
  result.seconds = real.end() + costs.update;
  std::vector<double> tokens(static_cast<size_t>(setup.ranks()), 0.0);
  for (const PartWork& part : micro_batches) {
    for (size_t r = 0; r < tokens.size(); ++r) tokens[r] += part.tokens[r];
    const double gathered = std::accumulate(part.received_bytes.begin(), part.received_bytes.end(), 0.0);
    result.exchanged_bytes += 2 * gathered * static_cast<double>(setup.tp * setup.model.layers);
  }
  result.tokens_max_over_mean = max_over_mean(tokens);
  result.memory = memory_at_home(setup, micro_batches);
  fill_result(setup, real, result);
  if (detail != nullptr) detail->events = real.events();
  return result;
}

double tokens_of(const StepDocuments& documents) {
  double tokens = 0;
  for (const auto& micro : documents) {
    for (const auto& nano : micro)
      tokens += static_cast<double>(std::accumulate(nano.begin(), nano.end(), int64_t{0}));
  }
  return tokens;
}

}  // namespace

double model_flops(const ModelShape& model, const StepDocuments& documents) {
  const double weights =
      static_cast<double>(model.layers * model.layer_parameters() + model.vocab * model.hidden);
  double pairs = 0;
  for (const auto& micro : documents) {
    for (const auto& nano : micro) {
      for (const int64_t length : nano)
        pairs += static_cast<double>(length) * static_cast<double>(length + 1) / 2;
    }
  }
  return 6 * weights * tokens_of(documents) +
         12 * static_cast<double>(model.heads * model.head_dim * model.layers) * pairs;
}

double balanced_seconds(const ClusterSetup& setup, const StepDocuments& documents) {
  const StepCosts costs = step_costs(setup.model, setup.profile, setup.tp, setup.pp, setup.recompute);
  double work = 0;
  for (const auto& micro : documents) {
    for (const auto& nano : micro) {
      for (const int64_t length : nano) {
        const auto rows =
            static_cast<double>(length);  // not rounded up to tiles: cuts could save some of that
        work += rows * ((rows + 1) / 2 + setup.profile.fit.attention_startup_keys);
      }
    }
  }
  // A layer's, of the whole step.
  const double attention = work * costs.attention(), linear = tokens_of(documents) * costs.layer_per_token();
  const auto micros = static_cast<double>(setup.micro_batches), stages = static_cast<double>(setup.pp);
  const double shared = (linear + attention) / static_cast<double>(setup.all_ranks());
  const double filled = linear / static_cast<double>(setup.ranks()) / stages * (micros + stages - 1) / micros;
  return static_cast<double>(setup.model.layers) * std::max(shared, filled) + costs.update;
}

StepResult simulate_step(const ClusterSetup& setup, const PolicyChoice& choice,
                         const StepDocuments& documents, StepDetail* detail) {
  check_cluster(setup);
  check_policy(setup, choice);
  const StepCosts costs = step_costs(setup.model, setup.profile, setup.tp, setup.pp, setup.recompute);
  StepResult result = choice.policy == Policy::kCad
                          ? simulate_disaggregated(setup, choice, documents, costs, detail)
                          : simulate_at_home(setup, choice, documents, costs, detail);
  result.balanced = balanced_seconds(setup, documents);
  return result;
}

}  // namespace distca
