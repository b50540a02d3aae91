#include "sim/step_plans.h"

#include <cmath>

#include "base/check.h"
#include "plan/free_layout.h"

namespace distca {
namespace {

PlanOptions plan_options(const ClusterSetup& setup, const PolicyChoice& choice, const StepCosts& costs,
                         bool backward) {
  PlanOptions options;
  options.policy = choice.policy;
  options.tolerance = setup.tolerance;
  const NetworkLink& link = setup.gpus > setup.gpus_per_node ? setup.profile.inter : setup.profile.intra;
  options.min_gain = setup.min_gain * 1e12 / link.bytes_per_second;
  options.search_moves = setup.search_moves;
  options.cost = TaskCost(attention_times(setup, costs, backward));
  options.bytes = row_bytes(device_heads(setup));
  options.dedicated = static_cast<int32_t>(setup.servers);
  return options;
}

/// The layouts of stages side by side: stage s has ranks [s · ranks, (s + 1) · ranks). Idle stages are null.
Layout stacked(const ClusterSetup& setup, const std::vector<const Layout*>& stages) {
  Layout all;
  all.ranks = static_cast<int32_t>(setup.ranks() * setup.pp);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage] == nullptr) continue;
    const auto doc = static_cast<int32_t>(all.doc_lengths.size());
    const auto home = static_cast<int32_t>(static_cast<int64_t>(stage) * setup.ranks());
    const Layout& layout = *stages[stage];
    all.doc_lengths.insert(all.doc_lengths.end(), layout.doc_lengths.begin(), layout.doc_lengths.end());
    all.rows = std::max(all.rows, layout.rows);
    for (Shard shard : layout.shards) {
      shard.doc += doc;
      shard.home += home;
      all.shards.push_back(shard);
    }
  }
  return all;
}

/// Each server's seconds of linear layers in picoseconds, where ranks differ; empty where all have the same.
std::vector<double> linear_times(const ClusterSetup& setup, const Layout& layout, const StepCosts& costs,
                                 bool backward) {
  if (setup.pp == 1 && setup.servers == 0) return {};
  const double per_token =
      backward ? costs.linear_backward + costs.tp_backward : costs.linear_forward + costs.tp_forward;
  std::vector<double> times;
  for (const int64_t tokens : layout.tokens_of_ranks())
    times.push_back(1e12 * per_token * static_cast<double>(tokens));
  times.resize(times.size() + static_cast<size_t>(setup.servers), 0.0);
  return times;
}

/// Plans ticks of one direction.
class TickPlanner {
 public:
  TickPlanner(const ClusterSetup& setup, const PolicyChoice& choice, const StepCosts& costs, bool backward)
      : setup_(setup),
        costs_(costs),
        backward_(backward),
        options_(plan_options(setup, choice, costs, backward)) {}

  /// `layouts[micro_batch]` are of one nano-batch.
  PartWork plan(const std::vector<Layout>& layouts, int64_t tick) {
    std::vector<const Layout*> stages;
    for (int64_t stage = 0; stage < setup_.pp; ++stage) {
      const int64_t micro = tick - (backward_ ? setup_.pp - 1 - stage : stage);
      const bool active = micro >= 0 && micro < setup_.micro_batches;
      stages.push_back(active ? &layouts[static_cast<size_t>(micro)] : nullptr);
    }
    const Layout layout = stacked(setup_, stages);
    options_.ci = linear_times(setup_, layout, costs_, backward_);
    return disaggregated_work(setup_, make_plan(layout, options_).plan);
  }

 private:
  const ClusterSetup& setup_;
  const StepCosts& costs_;
  bool backward_;
  PlanOptions options_;
};

}  // namespace

AttentionTimes attention_times(const ClusterSetup& setup, const StepCosts& costs, bool backward) {
  AttentionTimes times;
  // Start-up and pairs have their price each: interpolation is exact.
  for (int64_t rows = kTileRows; rows <= int64_t{1} << 20; rows *= 2) times.q.push_back(rows);
  times.kv = times.q;
  const double second = backward ? costs.attention_backward : costs.attention_forward;
  for (const int64_t q : times.q) {
    std::vector<double>& row = times.seconds.emplace_back();
    const auto rows = static_cast<double>(q);
    for (const int64_t kv : times.kv) {
      const auto keys = static_cast<double>(kv);
      const double mean = kv >= q ? keys - (rows - 1) / 2 : keys * (keys + 1) / 2 / rows;
      row.push_back(rows * (mean + setup.profile.fit.attention_startup_keys) * second);
    }
  }
  return times;
}

DisaggregatedPlans plan_disaggregated(const ClusterSetup& setup, const PolicyChoice& choice,
                                      const StepDocuments& documents, const StepCosts& costs) {
  const PlanOptions options = plan_options(setup, choice, costs, false);
  const auto ranks = static_cast<int32_t>(setup.ranks());
  std::vector<std::vector<Layout>> layouts(static_cast<size_t>(setup.nano_batches));  // [nano][micro]
  for (const auto& micro : documents) {
    for (size_t n = 0; n < micro.size(); ++n) {
      layouts[n].push_back(choice.layout == LayoutKind::kFree ? best_free_layout(micro[n], ranks, options)
                                                              : pack_in_order(micro[n], ranks));
    }
  }
  DisaggregatedPlans plans;
  const int64_t ticks = setup.micro_batches + setup.pp - 1;
  for (const bool backward : {false, true}) {
    if (backward && setup.pp == 1) break;
    TickPlanner planner(setup, choice, costs, backward);
    for (int64_t tick = 0; tick < ticks; ++tick) {
      std::vector<PartWork>& parts = (backward ? plans.backward : plans.forward).emplace_back();
      for (const std::vector<Layout>& nano : layouts) parts.push_back(planner.plan(nano, tick));
    }
  }
  return plans;
}

std::vector<PartWork> plan_at_home(const ClusterSetup& setup, const PolicyChoice& choice,
                                   const StepDocuments& documents) {
  std::vector<int64_t> all;
  for (const auto& micro : documents) {
    for (const auto& nano : micro) all.insert(all.end(), nano.begin(), nano.end());
  }
  PlanOptions options;
  options.policy = choice.policy;
  options.cp = static_cast<int32_t>(choice.cp);
  const int64_t ranks = setup.ranks() * setup.micro_batches;
  const Plan plan = make_plan(pack_in_order(all, static_cast<int32_t>(ranks)), options).plan;
  std::vector<PartWork> micro_batches;
  for (int64_t m = 0; m < setup.micro_batches; ++m) {
    micro_batches.push_back(at_home_work(setup, choice, plan, m * setup.ranks()));
  }
  return micro_batches;
}

}  // namespace distca
