#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "attend/core_attention.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "model/weights.h"

namespace distca {
namespace {

constexpr int64_t kLeastRowsPerRank = 128;

FlatParameters make_parameters(const RunInputs& inputs, const RankPlace& place, TensorGroup& group) {
  LlamaParameters model = make_part(inputs, place, group, inputs.device);
  if (inputs.config.model.weights.empty()) {
    initialize(model, static_cast<uint64_t>(inputs.config.train.seed));
  } else if (!place.server) {
    load_llama(model, inputs.config.model.weights);
  }
  return flatten(std::move(model));
}

void count_documents(const GlobalBatch& batch, int32_t ranks, StepMetrics& metrics) {
  const int64_t chunk = (batch.rows + ranks - 1) / ranks;
  for (const NanoBatch& nano_batch : batch.nano_batches) {
    for (const Piece& piece : nano_batch.documents) {
      ++metrics.documents;
      metrics.long_documents += piece.tokens.size() > chunk;
    }
  }
}

/// "documents 3, 4, 17 and 12 more".
std::string documents_text(const std::set<int64_t>& documents) {
  constexpr size_t kShown = 24;
  std::string out;
  size_t shown = 0;
  for (auto doc = documents.begin(); doc != documents.end() && shown < kShown; ++doc, ++shown)
    out += (shown == 0 ? "" : ", ") + std::to_string(*doc);
  if (documents.size() > shown) out += format(" and {} more", documents.size() - shown);
  return (documents.size() == 1 ? "document " : "documents ") + out;
}

constexpr double kGiB = 1 << 30;

/// What a rank holds at the very least until backward: the input of every layer, for its rows of the
/// nano-batches that run side by side.
double least_activation_bytes(const RunInputs& inputs, int32_t ranks) {
  const Config& config = inputs.config;
  const int64_t together = config.attention.overlap != "single" ? config.train.nano_batches : 1;
  const double rows = static_cast<double>(rows_of_nano_batch(config)) * static_cast<double>(together) / ranks;
  const auto bytes = static_cast<double>(c10::elementSize(scalar_type(config.model.dtype)));
  return rows * bytes * static_cast<double>(inputs.model.hidden_size) *
         static_cast<double>(inputs.model.num_hidden_layers) /
         static_cast<double>(config.parallel.tp * config.parallel.pp);
}

double machine_memory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void check_parallel(const RunInputs& inputs, int32_t ranks) {
  const Config& config = inputs.config;
  const RankGrid grid = grid_of(config, ranks);
  layers_by_stage(inputs);
  check_tensor_parallel(inputs.model, grid.tp);
  DISTCA_CHECK_INPUT(
      in_step(config) || grid.servers == 0,
      "parallel.servers = {}: with parallel.schedule = \"1f1b\" stages don't share exchanges, so "
      "dedicated servers have nothing to serve",
      grid.servers);
  DISTCA_CHECK_INPUT(
      config.attention.policy == "cad" || grid.servers == 0,
      "parallel.servers = {}: with attention.policy = \"{}\" dedicated servers would have nothing "
      "to do, only \"cad\" plans for them",
      grid.servers, config.attention.policy);
  const SpeedSetting& speeds = config.parallel.speeds;
  DISTCA_CHECK_INPUT(
      config.attention.policy == "cad" || (speeds.given.empty() && !speeds.measured),
      "parallel.speeds: with attention.policy = \"{}\" nothing goes by them, only \"cad\" plans by speed",
      config.attention.policy);
  prepare_options(inputs, grid, place_of(grid, 0));  // what plans go by
}

void check_run(const RunInputs& inputs, int32_t ranks) {
  const BatchInputs batch = batch_inputs(inputs.config);
  const int32_t dp = grid_of(inputs.config, ranks).dp;
  DISTCA_CHECK_INPUT(batch.rows() >= kLeastRowsPerRank * dp,
                     "train.tokens_per_batch = {} leaves {} rows of a nano-batch to each of {} data-parallel "
                     "ranks: at least "
                     "{} are needed; raise it, or lower nano_batches or the number of ranks",
                     batch.tokens_per_batch, batch.rows() / dp, dp, kLeastRowsPerRank);
  const double least = least_activation_bytes(inputs, dp), memory = machine_memory();
  DISTCA_CHECK_INPUT(
      least <= memory,
      "train.tokens_per_batch = {} needs more than {} GiB on each of {} ranks for the inputs of "
      "the layers alone, and this machine has {} GiB: lower it, or raise micro_batches",
      batch.tokens_per_batch, std::ceil(least / kGiB), ranks, std::floor(memory / kGiB));
}

Trainer::Trainer(Fabric& world, const RunInputs& inputs)
    : grid(grid_of(inputs.config, world.world_size())),
      place(place_of(grid, world.rank())),
      stage_layers(layers_by_stage(inputs)),
      spans([&world] { return world.now(); }),
      speeds(inputs.config.parallel.speeds, grid),
      inputs_(inputs),
      crew_(std::make_unique<RankCrew>(world, inputs, grid, place, spans)),
      stream_(make_stream(inputs, grid)),
      prepare_(prepare_options(inputs, grid, place)),
      first_place_(place),
      attention_ranks_(static_cast<size_t>(grid.attention_ranks())) {
  std::iota(attention_ranks_.begin(), attention_ranks_.end(), 0);
  parameters = make_parameters(inputs, place, crew_->group);
  adam = make_state(inputs, grid, place, parameters);
  crew_->take(parameters, inputs_, grid, place);
  if (inputs.repeated) stream_.repeat(*inputs.repeated);
  before_ = after_ = stream_.state();
  if (speeds.measured()) spans.start(/*keep_spans=*/false);
}

void Trainer::restore_stream(std::string_view state, const std::string& origin) {
  DISTCA_CHECK(preparer_ == nullptr, "the stream was restored after its first step");
  stream_.restore_state(state, origin);
  before_ = after_ = stream_.state();
  next_step_ = updates_ = sums_ = after_.step;
}

void Trainer::sum_gradients() {
  crew_->gradient_sum->finish();
  const auto sum = [](Fabric& fabric, const at::Tensor& part, const char* name) {
    const DType dtype = part.scalar_type() == at::kDouble ? DType::kFloat64 : DType::kFloat32;
    fabric.all_reduce(part.data_ptr(), part.numel(), dtype, ReduceOp::kSum, name);
  };
  for (const FlatEntry& entry : parameters.entries) {
    const at::Tensor gradient = parameters.gradients.narrow(0, entry.begin, entry.count);
    if (grid.tp > 1 && entry.sharding.replicated())
      sum(*fabrics().tensor, gradient, "sum of replicated gradients");
    if (fabrics().ends && entry.name == kEmbedding) sum(*fabrics().ends, gradient, "sum of tied gradients");
  }
}

// A sum over ranks counts every parameter once: by the first rank of those that hold it.
double Trainer::gradient_norm() const {
  double square = 0;
  for (const FlatEntry& entry : parameters.entries) {
    const bool tied = fabrics().ends && entry.name == kEmbedding && place.stage > 0;
    const bool other_tp_rank = entry.sharding.replicated() && place.tp_rank > 0;
    if (place.dp_rank > 0 || tied || other_tp_rank) continue;
    const double norm = distca::gradient_norm(parameters.gradients.narrow(0, entry.begin, entry.count));
    square += norm * norm;
  }
  fabrics().model->all_reduce(std::span<double>(&square, 1), ReduceOp::kSum, "norm of the gradient");
  return std::sqrt(square);
}

void Trainer::sum_over_ranks(std::vector<double>& losses, StepMetrics& metrics) {
  const SpanTimer timer(&spans, WorkKind::kWait, "sum of losses");
  // Every rank of a tensor-parallel group has the whole group's losses.
  if (place.tp_rank > 0) std::fill(losses.begin(), losses.end(), 0);
  losses.push_back(static_cast<double>(metrics.bytes));
  losses.push_back(metrics.pack_s);
  fabrics().world.all_reduce(std::span<double>(losses), ReduceOp::kSum, "sum of losses");
  metrics.pack_s = losses.back() / fabrics().world.world_size();
  losses.pop_back();
  metrics.bytes = static_cast<int64_t>(losses.back());
  losses.pop_back();
  std::vector<double> worst = {metrics.wait_s, metrics.load_max_over_mean,
                               static_cast<double>(metrics.held_rows), metrics.held_rows_max_over_mean};
  fabrics().world.all_reduce(std::span<double>(worst), ReduceOp::kMax, "longest wait");
  metrics.wait_s = worst[0];
  metrics.load_max_over_mean = worst[1];
  metrics.held_rows = static_cast<int64_t>(worst[2]);
  metrics.held_rows_max_over_mean = worst[3];
}

PreparedStep Trainer::take_step() {
  const double asked = fabrics().world.now();
  if (preparer_ == nullptr) {
    prepare_.ticks.plan.speeds = speeds_here(speeds_left(speeds.next()), prepare_.ticks);
    preparer_ = std::make_unique<StepPreparer>(stream_, prepare_);
    plan_begin_ = asked;
  }
  PreparedStep step = preparer_->take(speeds_here(speeds_left(speeds.after_next()), prepare_.ticks));
  before_ = after_;
  after_ = step.after;
  spans.place = {.step = step.batch.step};
  spans.add_wait("preparation of the step", asked, fabrics().world.now());
  spans.add(WorkKind::kPlan, "plan", plan_begin_, plan_begin_ + step.plan_ms / 1e3);
  plan_begin_ = fabrics().world.now();
  last_batch_ = step.batch;
  return step;
}

StepMetrics Trainer::forward_backward() {
  const PreparedStep step = take_step();
  {
    const SpanTimer timer(&spans, WorkKind::kWait, "digests");
    check_digests(crew_->runtime.fabric, step.digests);
  }

  const int64_t bytes_before = crew_->bytes_sent();
  const double wait_before = crew_->waited_s();
  parameters.gradients.zero_();
  const auto targets = static_cast<double>(std::max<int64_t>(1, step.batch.targets()));
  std::vector<double> losses =
      crew_->runner->run(step.ticks, step.nano_batches, 1 / targets, crew_->gradient_sum.get());

  StepMetrics metrics;
  metrics.step = step.batch.step;
  metrics.tokens = step.batch.tokens();
  metrics.targets = step.batch.targets();
  metrics.padding = step.padding;
  count_documents(step.batch, grid.dp, metrics);
  metrics.bytes = crew_->bytes_sent() - bytes_before;
  metrics.wait_s = crew_->waited_s() - wait_before;
  metrics.pack_s = crew_->packed_s() - packed_before_;
  packed_before_ = crew_->packed_s();
  metrics.plan_ms = step.plan_ms;
  metrics.digest = step.digest();
  metrics.redone = redone_;
  metrics.servers = fabrics().world.world_size() - grid.model_ranks() * grid.tp;
  metrics.load_max_over_mean = step.load_max_over_mean;
  metrics.load_max_over_mean_none = step.load_max_over_mean_none;
  metrics.idle_load = step.idle_load;
  metrics.idle_share = step.idle_share;
  metrics.held_rows = step.held_rows;
  metrics.held_rows_max_over_mean = step.held_rows_max_over_mean;
  metrics.speeds = speeds_left(speeds.next());
  own_load_ = step.own_load;
  spans.place = {.step = metrics.step};
  const double summing = fabrics().world.now();
  sum_over_ranks(losses, metrics);
  metrics.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / targets;
  if (!place.server) {
    sum_gradients();
    sums_ = metrics.step + 1;
    metrics_ = metrics;  // all there is to know should a rank be lost in the next sum
    metrics.grad_norm = gradient_norm();
  }
  metrics.reduce_s = fabrics().world.now() - summing;
  metrics.timing_only = crew_->runtime.signal != nullptr;
  const bool finite = std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm);
  // A server that stopped here would pass for one that was lost.
  if (!finite && !metrics.timing_only && !place.server) stop_for(step, losses, metrics);
  if (crew_->runtime.signal) crew_->runtime.signal->sends_rows = false;
  if (step.beyond_row_limit > 0 && fabrics().world.rank() == 0) {
    log_warning(
        "step {}: {} of its plans can't keep every server to the {} K/V rows that parallel.memory_limit "
        "leaves room for; they were made without that limit",
        metrics.step, step.beyond_row_limit, prepare_.ticks.plan.kv_row_limit);
  }
  crew_->runtime.pool.trim();
  return metrics;
}

void Trainer::stop_for(const PreparedStep& step, const std::vector<double>& losses,
                       const StepMetrics& metrics) const {
  const bool by_loss = !std::isfinite(metrics.loss);
  std::set<int64_t> documents;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (by_loss && std::isfinite(losses[i])) continue;
    for (const Piece& piece : step.batch.nano_batches[i].documents) documents.insert(piece.doc);
  }
  throw NotFinite(format("step {}: the {} is {}, in {}", metrics.step, by_loss ? "loss" : "gradient's norm",
                         std::isnan(by_loss ? metrics.loss : metrics.grad_norm) ? "nan" : "infinite",
                         documents_text(documents)));
}

void Trainer::update(StepMetrics& metrics) {
  const SpanTimer timer(&spans, WorkKind::kOptimizer, "optimizer");
  apply(metrics);
  exchange_updates();
  measure_speeds();
  next_step_ = metrics.step + 1;
}

void Trainer::apply(StepMetrics& metrics) {
  const double begin = thread_cpu_seconds();
  metrics.lr = learning_rate(inputs_.config.train, metrics.step);
  clip_gradients(parameters, metrics.grad_norm, inputs_.config.train.clip);
  adam_update(parameters, adam, inputs_.config.train, metrics.lr);
  optimizer_s_ += thread_cpu_seconds() - begin;
  updates_ = metrics.step + 1;
  metrics_ = metrics;
}

// Of what has been exchanged before, the same bits.
void Trainer::exchange_updates() {
  if (inputs_.config.parallel.shard_optimizer && !place.server)
    exchange_slices(*fabrics().data, parameters.values, optimizer_slices(parameters, grid.dp),
                    "updated parameters");
}

// Every rank of a tensor-parallel group has its server's load: the slowest counts. Servers have the places
// here that they began with; those that are lost have no load.
void Trainer::measure_speeds() {
  if (!speeds.measured()) return speeds.add_step({}, {});
  std::vector<double> loads(speeds.servers()), seconds(speeds.servers());
  const double attended = spans.seconds()[static_cast<size_t>(WorkKind::kAttention)];
  const auto own = static_cast<size_t>(first_place_.attention_rank);
  loads[own] = own_load_;
  seconds[own] = attended - attended_before_;
  attended_before_ = attended;
  fabrics().world.all_reduce(std::span<double>(loads), ReduceOp::kMax, "loads of the step");
  fabrics().world.all_reduce(std::span<double>(seconds), ReduceOp::kMax, "seconds of attention");
  speeds.add_step(loads, seconds);
}

// A rank that is lost while speeds are measured leaves some with the step counted and some without.
void Trainer::agree_on_speeds() {
  if (!speeds.measured()) return;
  std::string state = speeds.dump();
  auto bytes = static_cast<int64_t>(state.size());
  fabrics().world.broadcast(&bytes, sizeof bytes, 0, "size of the speeds");
  state.resize(static_cast<size_t>(bytes));
  fabrics().world.broadcast(state.data(), bytes, 0, "speeds of servers");
  speeds.restore(state, "rank 0");
  attended_before_ = spans.seconds()[static_cast<size_t>(WorkKind::kAttention)];
}

// A step is over when the last rank is done with it.
void Trainer::finish_times(double begin, double computed_before, StepMetrics& metrics) {
  const double end = fabrics().world.now(), own = end - begin;
  double last = own, computed = computed_s() - computed_before;
  fabrics().world.all_reduce(std::span<double>(&last, 1), ReduceOp::kMax, "time of the step");
  fabrics().world.all_reduce(std::span<double>(&computed, 1), ReduceOp::kSum, "compute of the step");
  // Ranks don't begin a step at quite the same time.
  spans.add_wait("the last rank", end, std::min(end + (last - own), fabrics().world.now()));
  steps_s += last;
  metrics.step_s = last;
  metrics.compute_s = computed / fabrics().world.world_size();
  metrics.tokens_per_s = static_cast<double>(metrics.tokens) / last;
  metrics_ = metrics;
  begun_.reset();
  redone_ = 0;
}

StepMetrics Trainer::step() {
  if (!begun_) begun_ = fabrics().world.now();
  const double begin = *begun_, computed = computed_s();
  StepMetrics metrics = forward_backward();
  update(metrics);
  finish_times(begin, computed, metrics);
  return metrics;
}

void Trainer::go_on(std::unique_ptr<Fabric> world) {
  const std::vector<Standing> ranks = gather_standings(
      *world,
      {first_place_.server, first_place_.tp_rank, first_place_.attention_rank, updates_, metrics_.grad_norm});
  const StepsDone done = steps_done(ranks);
  if (!place.server && updates_ < done.steps) {
    DISTCA_CHECK(sums_ == done.steps, "step {} is done on another rank, and this one has no gradients of it",
                 done.steps - 1);
    metrics_.grad_norm = done.grad_norm;
    apply(metrics_);
  }
  grid = grid_left(grid, ranks, place.tp_rank);
  place = place_left(first_place_, ranks);
  attention_ranks_ = attention_ranks_left(ranks, place.tp_rank);
  inputs_.config.parallel.speeds = {};  // `speeds` has them
  auto crew = std::make_unique<RankCrew>(*world, inputs_, grid, place, spans);
  crew->take(parameters, inputs_, grid, place);
  crew_ = std::move(crew);  // what was under way over the ranks before ends here
  world_ = std::move(world);
  exchange_updates();
  agree_on_speeds();
  go_to(done.steps);
}

void Trainer::go_to(int64_t step) {
  const bool again = after_.step > step;  // it had been begun
  if (again) {
    ++redone_;
  } else if (begun_) {
    metrics_.step_s = fabrics().world.now() - *begun_;
    metrics_.tokens_per_s = static_cast<double>(metrics_.tokens) / metrics_.step_s;
    steps_s += metrics_.step_s;
    begun_.reset();
    redone_ = 0;
  }
  after_ = before_ = again ? before_ : after_;
  DISTCA_CHECK(after_.step == step, "ranks agree on step {}, and this one stands at {}", step, after_.step);
  stream_.restore_state(stream_.dump_state(after_), "the run");
  next_step_ = step;
  preparer_ = nullptr;
  prepare_ = prepare_options(inputs_, grid, place);
  packed_before_ = 0;
}

}  // namespace distca
