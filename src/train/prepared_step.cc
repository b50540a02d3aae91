#include "train/prepared_step.h"

#include <ATen/ops/_pin_memory.h>
#include <ATen/ops/tensor.h>

#include <map>
#include <memory>
#include <utility>

#include "attend/live_bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "plan/baselines.h"
#include "plan/report.h"
#include "train/epoch_order.h"
#include "train/rank_rows.h"

namespace distca {
namespace {

/// Loads of the ranks when each computes the queries it is home to, with all keys before them.
std::vector<int64_t> home_loads(const Layout& layout) {
  std::vector<int64_t> loads(layout.ranks);
  for (const Shard& shard : layout.shards)
    loads[shard.home] += padded_pairs({shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home});
  return loads;
}

}  // namespace

namespace {

PreparedStep map_tensors(PreparedStep step, const TensorMap& map) {
  std::map<const SlotTables*, std::shared_ptr<const SlotTables>> made;
  for (PreparedTick& tick : step.ticks) {
    for (auto& slots : tick.slots) {
      for (std::shared_ptr<const SlotTables>& tables : slots) {
        if (tables == nullptr) continue;
        std::shared_ptr<const SlotTables>& mapped = made[tables.get()];
        if (mapped == nullptr) {
          SlotTables copy = *tables;
          copy.tables = std::make_shared<RankTables>(map_indices(*tables->tables, map));
          mapped = std::make_shared<SlotTables>(std::move(copy));
        }
        tables = mapped;
      }
    }
  }
  for (NanoBatchRows& rows : step.nano_batches) {
    for (at::Tensor* tensor : {&rows.tokens, &rows.targets, &rows.rope.cos, &rows.rope.sin})
      if (tensor->defined()) *tensor = map(*tensor);
  }
  return step;
}

}  // namespace

PreparedStep on_device(PreparedStep step, at::Device device) {
  if (device.is_cpu()) return step;
  return map_tensors(std::move(step), [device](const at::Tensor& x) {
    return x.to(device, x.scalar_type(), /*non_blocking=*/true);
  });
}

uint64_t PreparedStep::digest() const {
  uint64_t out = 0;
  for (const uint64_t digest : digests) out = mix64(out ^ digest);
  return out;
}

Layout layout_by(const PlanOptions& options, const NanoBatch& nano_batch, int64_t rows, int32_t ranks) {
  if (!nano_batch.groups.empty()) {
    std::vector<std::vector<int32_t>> groups;
    int32_t doc = 0;
    for (const int64_t members : nano_batch.groups) {
      groups.emplace_back();
      for (int64_t i = 0; i < members; ++i) groups.back().push_back(doc++);
    }
    return grouped_layout(nano_batch.lengths(), groups, options.cp);
  }
  const Layout in_order = layout_of(nano_batch, rows, ranks);
  const bool packs_itself = options.policy != Policy::kNone && options.policy != Policy::kCad;
  if (!packs_itself && options.layout == LayoutKind::kFixed) return in_order;
  PlanOptions at_home = options;
  at_home.speeds.clear();
  return make_plan(in_order, at_home).plan.layout;
}

StepPreparer::StepPreparer(BatchStream stream, PrepareOptions options)
    : stream_(std::move(stream)), options_(std::move(options)) {
  start();
}

StepPreparer::~StepPreparer() = default;

void StepPreparer::start() {
  if (stream_.state().step >= options_.steps) return;
  next_ = std::async(std::launch::async, [this, count = current_live_bytes()] {
    const LiveBytesScope scope(count);
    return make();
  });
}

PreparedStep StepPreparer::take(std::vector<double> speeds) {
  DISTCA_CHECK(next_.valid(), "step {} is beyond the last", stream_.state().step);
  PreparedStep step = next_.get();
  options_.ticks.plan.speeds = std::move(speeds);
  start();
  return step;
}

PreparedStep StepPreparer::make() {
  PreparedStep step;
  step.batch = stream_.next();
  step.after = stream_.state();
  const double begin = thread_cpu_seconds();
  std::vector<Layout> layouts;
  for (const NanoBatch& nano_batch : step.batch.nano_batches)
    layouts.push_back(layout_by(options_.ticks.plan, nano_batch, step.batch.rows, options_.ticks.grid.dp));
  step.padding = step.batch.padding();
  if (!step.batch.nano_batches.front().groups.empty()) {  // packed by workload: chunks of other sizes
    step.padding = -step.batch.tokens();
    for (const Layout& layout : layouts)
      step.padding += rows_held(layout, options_.ticks.grid) * options_.ticks.grid.dp;
  }
  plan_ticks(step, layouts);
  step.plan_ms = (thread_cpu_seconds() - begin) * 1e3;
  for (size_t i = 0; i < layouts.size(); ++i)
    step.nano_batches.push_back(rows_of(step.batch.nano_batches[i], layouts[i]));
  if (options_.device.is_cpu()) return step;
  return map_tensors(std::move(step),
                     [&](const at::Tensor& x) { return at::_pin_memory(x, options_.device); });
}

void StepPreparer::plan_ticks(PreparedStep& step, const std::vector<Layout>& layouts) const {
  const int64_t micro_batches = static_cast<int64_t>(layouts.size()) / options_.nano_batches;
  const std::vector<Tick> ticks =
      options_.schedule == PipelineSchedule::kSamePhase
          ? same_phase_ticks(options_.ticks.grid.pp, micro_batches)
          : one_forward_one_backward_ticks(options_.ticks.grid.pp, options_.place.stage, micro_batches);
  TickPlanOptions options = options_.ticks;
  // The layout is decided; what is left is who computes what.
  if (options.plan.policy != Policy::kCad) options.plan.policy = Policy::kNone;
  TickPlanner planner(options, layouts, options_.nano_batches);
  for (const Tick& tick : ticks) step.ticks.push_back(planner.plan(tick));
  step.digests = planner.digests();
  step.load_max_over_mean = planner.worst_finish();
  step.beyond_row_limit = planner.beyond_row_limit();
  step.idle_load = planner.idle_load();
  step.idle_share = planner.idle_share();
  step.own_load = planner.own_load();
  step.held_rows = planner.held_rows();
  step.held_rows_max_over_mean = planner.held_rows_max_over_mean();
  for (const Layout& layout : layouts)
    step.load_max_over_mean_none = std::max(step.load_max_over_mean_none, max_over_mean(home_loads(layout)));
}

NanoBatchRows StepPreparer::rows_of(const NanoBatch& nano_batch, const Layout& layout) const {
  NanoBatchRows out;
  if (options_.place.server) return out;
  Layout padded = layout;
  padded.rows = out.rows = rows_held(layout, options_.ticks.grid);
  const RankRows rows =
      read_rows(nano_batch, padded, options_.place.dp_rank, stream_.source(), options_.model.vocab_size);
  out.tokens = at::tensor(rows.tokens);
  out.targets = at::tensor(rows.targets);
  out.rope = make_rope(options_.model, at::tensor(rows.positions), options_.dtype);
  return out;
}

}  // namespace distca
