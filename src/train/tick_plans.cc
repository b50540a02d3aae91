#include "train/tick_plans.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/finish.h"
#include "plan/report.h"
#include "plan/traffic.h"

namespace distca {

int64_t TickPlanOptions::slots() const {
  return *std::max_element(stage_layers.begin() + stage_begin, stage_layers.begin() + stage_end);
}

int64_t rows_held(const Layout& layout, const RankGrid& grid) {
  return (layout.rows + grid.tp - 1) / grid.tp * grid.tp;
}

TickPlanner::TickPlanner(const TickPlanOptions& options, std::vector<Layout> layouts, int64_t nano_batches)
    : options_(options), layouts_(std::move(layouts)), nano_batches_(nano_batches) {}

const Layout& TickPlanner::layout(int64_t micro_batch, int64_t nano_batch) const {
  return layouts_[static_cast<size_t>(micro_batch * nano_batches_ + nano_batch)];
}

std::vector<bool> TickPlanner::stages_running(const Tick& tick, int64_t slot) const {
  std::vector<bool> running;
  for (int32_t stage = 0; stage < options_.stages(); ++stage)
    running.push_back(tick.micro_batches[stage] != kIdle && slot < layers(stage));
  return running;
}

std::vector<double> TickPlanner::other_work(const Tick& tick, const std::vector<bool>& running,
                                            int64_t slot) const {
  // Equal ranks, each with a micro-batch: what they do besides attention matters to exchanges alone.
  const bool equal = options_.stages() == 1 && options_.dedicated() == 0 && options_.plan.speeds.empty();
  if (equal && !options_.link) return {};
  std::vector<double> work(static_cast<size_t>(options_.servers()), 0.0);
  for (int32_t stage = 0; stage < options_.stages(); ++stage) {
    if (!running[stage]) continue;
    // The head stands after a stage's last attention forward, before its first backward.
    const bool last_stage = options_.stage_begin + stage + 1 == options_.grid.pp;
    const bool with_head = last_stage && slot == (tick.forward ? layers(stage) - 1 : 0);
    const double per_row = options_.work.per_row_layer + (with_head ? options_.work.per_row_head : 0);
    const double rows = static_cast<double>(layout(tick.micro_batches[stage], 0).rows);
    for (int32_t d = 0; d < options_.grid.dp; ++d) {
      const auto rank = static_cast<size_t>(stage * options_.grid.dp + d);
      const double speed = options_.plan.speeds.empty() ? 1 : options_.plan.speeds[rank];
      work[rank] = rows * per_row * (tick.forward ? 1 : options_.work.backward) / speed;
    }
  }
  return work;
}

Layout TickPlanner::combine(const Tick& tick, const std::vector<bool>& running, int64_t nano_batch,
                            std::vector<int32_t>& doc_end) const {
  Layout out;
  out.ranks = options_.home_ranks();
  out.rows = 1;
  for (int32_t stage = 0; stage < options_.stages(); ++stage) {
    if (running[stage]) {
      const Layout& of_stage = layout(tick.micro_batches[stage], nano_batch);
      const auto first = static_cast<int32_t>(out.doc_lengths.size());
      out.rows = std::max(out.rows, of_stage.rows);
      out.doc_lengths.insert(out.doc_lengths.end(), of_stage.doc_lengths.begin(), of_stage.doc_lengths.end());
      for (Shard shard : of_stage.shards) {
        shard.doc += first;
        shard.home += stage * options_.grid.dp;
        out.shards.push_back(shard);
      }
    }
    doc_end.push_back(static_cast<int32_t>(out.doc_lengths.size()));
  }
  return out;
}

Plan TickPlanner::plan_of_forward(const Tick& tick, const std::vector<bool>& running, int64_t nano_batch,
                                  int64_t slot, Layout layout, const std::vector<int32_t>& doc_end) const {
  Plan plan{std::move(layout), options_.servers(), {}};
  for (int32_t stage = 0; stage < options_.stages(); ++stage) {
    if (!running[stage]) continue;
    const Made& forward =
        *forwards_.at({stage, tick.micro_batches[stage], nano_batch, layers(stage) - 1 - slot});
    const auto first = [&](const std::vector<int32_t>& ends) { return stage == 0 ? 0 : ends[stage - 1]; };
    const int32_t from = first(forward.doc_end), to = forward.doc_end[stage];
    for (Task task : forward.plan.tasks) {
      if (task.doc < from || task.doc >= to) continue;
      task.doc += first(doc_end) - from;
      plan.tasks.push_back(task);
    }
  }
  plan.sort_tasks();
  return plan;
}

std::shared_ptr<const SlotTables> TickPlanner::tables_of(const Made& made, const Exchange& exchange,
                                                         int64_t home_rows) const {
  auto out = std::make_shared<SlotTables>();
  auto tables = std::make_shared<RankTables>(
      make_rank_tables(made.plan, exchange, digests_.back(), options_.rank, at::kCPU, home_rows));
  if (options_.kernel)
    tables->kernel = options_.kernel->prepare(options_.shape, tables->tasks, tables->first_rows());
  out->tables = std::move(tables);
  // As Exchange numbers rows: by document, so stage by stage.
  std::vector<int64_t> q_end(made.doc_end.size(), 0), kv_end = q_end;
  size_t task = 0;
  for (const Task& each : made.plan.tasks) {
    if (each.server != options_.rank) continue;
    const RowTask& rows = exchange.servers[options_.rank].tasks[task++];
    const auto stage = static_cast<size_t>(
        std::upper_bound(made.doc_end.begin(), made.doc_end.end(), each.doc) - made.doc_end.begin());
    q_end[stage] = std::max(q_end[stage], rows.q_row + rows.q_len);
    kv_end[stage] = std::max(kv_end[stage], rows.kv_row + rows.kv_len);
  }
  for (size_t stage = 1; stage < q_end.size(); ++stage) {
    q_end[stage] = std::max(q_end[stage], q_end[stage - 1]);
    kv_end[stage] = std::max(kv_end[stage], kv_end[stage - 1]);
  }
  out->q_end = ends_of(out->tables->q, q_end);
  out->kv_end = ends_of(out->tables->kv, kv_end);
  return out;
}

std::vector<SlotTables::Ends> TickPlanner::ends_of(const RowTable& table,
                                                   const std::vector<int64_t>& server_row_end) const {
  std::vector<SlotTables::Ends> ends;
  for (size_t stage = 0; stage < server_row_end.size(); ++stage) {
    SlotTables::Ends end;
    for (const PeerRows& peer : table.server_peers) {
      if (peer.peer / options_.grid.dp <= static_cast<int32_t>(stage))
        end.arrived = std::max(end.arrived, peer.offset + peer.rows);
    }
    end.copied = std::lower_bound(table.copied_server_rows.begin(), table.copied_server_rows.end(),
                                  server_row_end[stage]) -
                 table.copied_server_rows.begin();
    ends.push_back(end);
  }
  return ends;
}

Plan TickPlanner::make_within_limit(const Layout& layout, PlanOptions options) {
  const auto make = [&] {
    return options_.link ? make_plan(layout, options, *options_.link).plan : make_plan(layout, options).plan;
  };
  if (options.kv_row_limit == 0) return make();
  try {
    return make();
  } catch (const InputError&) {
    ++beyond_row_limit_;
    options.kv_row_limit = 0;
    return make();
  }
}

void TickPlanner::account(const Plan& plan, const PlanOptions& options) {
  std::vector<int64_t> loads(static_cast<size_t>(plan.servers), 0);
  int64_t total = 0;
  for (const Task& task : plan.tasks) {
    loads[task.server] += options.cost(task);
    total += options.cost(task);
  }
  const FinishTimes times = finish_times(total, plan.servers, options.speeds, options.ci, 0);
  std::vector<bool> home(loads.size(), false);
  for (const Shard& shard : plan.layout.shards) home[shard.home] = true;
  for (size_t r = 0; r < loads.size(); ++r) {
    const double ci = options.ci.empty() ? 0 : options.ci[r];
    const double speed = options.speeds.empty() ? 1 : options.speeds[r];
    const double due = std::max(times.best, ci);
    if (due > 0) worst_finish_ = std::max(worst_finish_, (ci + static_cast<double>(loads[r]) / speed) / due);
    if (!options.ci.empty() && ci == 0 && !home[r]) {
      idle_load_ += static_cast<double>(loads[r]);
      idle_share_ += speed * times.best;
    }
  }
}

void TickPlanner::account_rows(const Plan& plan, const Exchange& exchange) {
  const std::vector<int64_t> held = held_kv_rows(plan, exchange);
  held_rows_ = std::max(held_rows_, *std::max_element(held.begin(), held.end()));
  held_rows_max_over_mean_ = std::max(held_rows_max_over_mean_, max_over_mean(held));
}

void TickPlanner::count_own_load(Made& made) const {
  // Without a profile backward costs 2.5 times what forward does.
  const bool in_seconds = options_.plan.cost.in_seconds();
  for (const Task& task : made.plan.tasks) {
    if (task.server != options_.rank) continue;
    const auto forward = static_cast<double>(options_.plan.cost(task));
    made.own_load += forward;
    made.own_backward += in_seconds ? static_cast<double>(options_.backward_cost(task)) : 2.5 * forward;
  }
}

PlanOptions TickPlanner::plan_options(bool forward, const std::vector<double>& work) const {
  PlanOptions options = options_.plan;
  options.layout = LayoutKind::kFixed;
  options.dedicated = options_.dedicated();
  options.ci = work;
  if (forward) return options;
  options.cost = options_.backward_cost;
  if (options_.link) {
    // Q, K and V go out again, and dO with them; dQ, dK and dV come back. A plan counts keys on their way out
    // alone.
    RowBytes& bytes = options.bytes;
    bytes.q *= 2, bytes.k *= 2, bytes.v *= 2;
  }
  return options;
}

TickPlanner::MadePointer TickPlanner::make(const Tick& tick, int64_t nano_batch, int64_t slot,
                                           const std::vector<bool>& running,
                                           const std::vector<double>& work) {
  auto made = std::make_shared<Made>();
  Layout layout = combine(tick, running, nano_batch, made->doc_end);
  const PlanOptions options = plan_options(tick.forward, work);
  if (!tick.forward && options_.keep) {
    made->plan = plan_of_forward(tick, running, nano_batch, slot, std::move(layout), made->doc_end);
  } else {
    made->plan = make_within_limit(layout, options);
  }
  if (tick.forward) account(made->plan, options);
  digests_.push_back(made->plan.digest());
  const int32_t stage = options_.rank / options_.grid.dp;
  const bool holds = stage < options_.stages() && running[stage];
  const int64_t rows =
      holds ? rows_held(this->layout(tick.micro_batches[stage], nano_batch), options_.grid) : 0;
  const Exchange exchange = make_exchange(made->plan);
  if (tick.forward) account_rows(made->plan, exchange);
  made->tables = tables_of(*made, exchange, rows);
  count_own_load(*made);
  return made;
}

PreparedTick TickPlanner::plan(const Tick& tick) {
  PreparedTick out{tick, {}};
  out.slots.resize(static_cast<size_t>(nano_batches_));
  // Without other stages or servers backward has the documents and the ranks of its forward, and its plan.
  const bool as_forward = !tick.forward && options_.stages() == 1;
  for (int64_t nano_batch = 0; nano_batch < nano_batches_; ++nano_batch) {
    std::map<std::pair<std::vector<bool>, std::vector<double>>, MadePointer> made_before;
    for (int64_t slot = 0; slot < options_.slots(); ++slot) {
      const std::vector<bool> running = stages_running(tick, slot);
      if (std::find(running.begin(), running.end(), true) == running.end()) {
        out.slots[nano_batch].push_back(nullptr);
        continue;
      }
      MadePointer made;
      if (as_forward) {
        made = forwards_.at({0, tick.micro_batches[0], nano_batch, layers(0) - 1 - slot});
      } else {
        const std::vector<double> work = other_work(tick, running, slot);
        MadePointer& before = made_before[{running, work}];
        const bool distinct = !tick.forward && options_.keep;  // forward's plans may differ by layer
        if (before == nullptr || distinct) before = make(tick, nano_batch, slot, running, work);
        made = before;
      }
      out.slots[nano_batch].push_back(made->tables);
      own_load_ += tick.forward ? made->own_load : made->own_backward;
      for (int32_t stage = 0; stage < options_.stages(); ++stage) {
        if (!running[stage]) continue;
        const int64_t layer = tick.forward ? slot : layers(stage) - 1 - slot;
        const std::array<int64_t, 4> key = {stage, tick.micro_batches[stage], nano_batch, layer};
        if (tick.forward) {
          forwards_[key] = made;
        } else {
          forwards_.erase(key);
        }
      }
    }
  }
  return out;
}

}  // namespace distca
