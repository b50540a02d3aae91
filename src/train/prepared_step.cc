#include "train/prepared_step.h"

#include <ATen/ops/tensor.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "plan/exchange.h"
#include "plan/report.h"
#include "plan/traffic.h"
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

uint64_t PreparedStep::digest() const {
  uint64_t out = 0;
  for (const PreparedNanoBatch& nano_batch : nano_batches) out = mix64(out ^ nano_batch.digest);
  return out;
}

StepPreparer::StepPreparer(BatchStream stream, PrepareOptions options)
    : stream_(std::move(stream)), options_(std::move(options)) {
  start();
}

StepPreparer::~StepPreparer() = default;

void StepPreparer::start() {
  if (stream_.state().step >= options_.steps) return;
  next_ = std::async(std::launch::async, [this] { return make(); });
}

PreparedStep StepPreparer::take() {
  DISTCA_CHECK(next_.valid(), "step {} is beyond the last", stream_.state().step);
  PreparedStep step = next_.get();
  start();
  return step;
}

PreparedStep StepPreparer::make() {
  PreparedStep step;
  step.batch = stream_.next();
  step.after = stream_.state();
  double plan_s = 0;
  for (const NanoBatch& nano_batch : step.batch.nano_batches)
    step.nano_batches.push_back(make_nano_batch(step.batch, nano_batch, plan_s));
  step.plan_ms = plan_s * 1e3;
  return step;
}

PreparedNanoBatch StepPreparer::make_nano_batch(const GlobalBatch& batch, const NanoBatch& nano_batch,
                                                double& plan_s) {
  const double begin = thread_cpu_seconds();
  const Layout layout = layout_of(nano_batch, batch.rows, options_.ranks);
  const Plan plan = make_plan(layout, options_.plan).plan;
  PreparedNanoBatch out;
  out.digest = plan.digest();
  out.tables.forward = std::make_shared<RankTables>(
      make_rank_tables(plan, make_exchange(plan), out.digest, options_.rank, at::kCPU));
  out.tables.backward = out.tables.forward;
  out.load_max_over_mean = max_over_mean(padded_pairs_of_servers(plan));
  out.load_max_over_mean_none = max_over_mean(home_loads(layout));
  plan_s += thread_cpu_seconds() - begin;

  const RankRows rows =
      read_rows(nano_batch, layout, options_.rank, stream_.source(), options_.model.vocab_size);
  out.tokens = at::tensor(rows.tokens);
  out.targets = at::tensor(rows.targets);
  out.rope = make_rope(options_.model, at::tensor(rows.positions), options_.dtype);
  return out;
}

}  // namespace distca
