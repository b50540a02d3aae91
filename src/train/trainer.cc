#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include "base/check.h"
#include "model/weights.h"
#include "train/schedule.h"

namespace distca {
namespace {

constexpr int64_t kLeastRowsPerRank = 128;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RuntimeOptions runtime_options(const Config& config) {
  RuntimeOptions options;
  options.kernel = config.attention.kernel;
  options.threads = at::get_num_threads();
  options.memory = config.attention.memory == "keep" ? AttentionMemory::kKeep : AttentionMemory::kResend;
  return options;
}

FlatParameters make_parameters(const RunInputs& inputs) {
  const at::ScalarType dtype = scalar_type(inputs.config.model.dtype);
  LlamaParameters model = make_llama(inputs.model, LlamaPart::whole(inputs.model), dtype);
  if (inputs.config.model.weights.empty()) {
    initialize(model, static_cast<uint64_t>(inputs.config.train.seed));
  } else {
    load_llama(model, inputs.config.model.weights);
  }
  return flatten(std::move(model));
}

PrepareOptions prepare_options(const Fabric& fabric, const RunInputs& inputs) {
  PrepareOptions options;
  options.rank = fabric.rank();
  options.ranks = fabric.world_size();
  options.model = inputs.model;
  options.dtype = scalar_type(inputs.config.model.dtype);
  options.steps = inputs.config.train.steps;
  options.plan.policy = policy_named(inputs.config.attention.policy);
  options.plan.tolerance = inputs.config.attention.tolerance;
  options.plan.bytes =
      row_bytes({inputs.model.num_attention_heads, inputs.model.num_key_value_heads, inputs.model.head_dim,
                 static_cast<int64_t>(c10::elementSize(options.dtype))});
  return options;
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
  const int64_t together = config.attention.overlap == "pingpong" ? config.train.nano_batches : 1;
  const double rows = static_cast<double>(rows_of_nano_batch(config)) * static_cast<double>(together) / ranks;
  const auto bytes = static_cast<double>(c10::elementSize(scalar_type(config.model.dtype)));
  return rows * bytes * static_cast<double>(inputs.model.hidden_size) *
         static_cast<double>(inputs.model.num_hidden_layers);
}

double machine_memory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

BatchInputs batch_inputs(const Config& config) {
  BatchInputs inputs;
  inputs.tokens_per_batch = config.train.tokens_per_batch;
  inputs.micro_batches = config.train.micro_batches;
  inputs.nano_batches = config.train.nano_batches;
  inputs.context = config.data.context == 0 ? inputs.rows() : config.data.context;
  inputs.window = config.data.window;
  inputs.split_documents = config.data.split_documents;
  inputs.seed = config.train.seed;
  return inputs;
}

at::ScalarType scalar_type(const std::string& dtype) {
  return dtype == "float64" ? at::kDouble : dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

void check_run(const RunInputs& inputs, int32_t ranks) {
  const BatchInputs batch = batch_inputs(inputs.config);
  DISTCA_CHECK_INPUT(
      batch.rows() >= kLeastRowsPerRank * ranks,
      "train.tokens_per_batch = {} leaves {} rows of a nano-batch to each of {} ranks: at least "
      "{} are needed; raise it, or lower nano_batches or the number of ranks",
      batch.tokens_per_batch, batch.rows() / ranks, ranks, kLeastRowsPerRank);
  const double least = least_activation_bytes(inputs, ranks), memory = machine_memory();
  DISTCA_CHECK_INPUT(
      least <= memory,
      "train.tokens_per_batch = {} needs more than {} GiB on each of {} ranks for the inputs of "
      "the layers alone, and this machine has {} GiB: lower it, or raise micro_batches",
      batch.tokens_per_batch, std::ceil(least / kGiB), ranks, std::floor(memory / kGiB));
}

Trainer::Trainer(Fabric& fabric, const RunInputs& inputs)
    : parameters(make_parameters(inputs)),
      adam(make_adam_state(parameters)),
      fabric_(fabric),
      config_(inputs.config),
      runtime_(fabric, runtime_options(inputs.config)),
      stream_(inputs.source, batch_inputs(inputs.config)),
      prepare_(prepare_options(fabric, inputs)) {}

void Trainer::restore_stream(std::string_view state, const std::string& origin) {
  DISTCA_CHECK(preparer_ == nullptr, "the stream was restored after its first step");
  stream_.restore_state(state, origin);
  after_ = stream_.state();
  next_step_ = after_.step;
}

std::vector<double> Trainer::run_nano_batches(const PreparedStep& step) {
  const double targets = static_cast<double>(std::max<int64_t>(1, step.batch.targets()));
  const int64_t together = config_.attention.overlap == "pingpong" ? config_.train.nano_batches : 1;
  std::vector<double> losses;
  const std::span<const PreparedNanoBatch> all = step.nano_batches;
  for (size_t first = 0; first < all.size(); first += together) {
    const std::vector<at::Tensor> sums =
        forward_losses(parameters.model, runtime_, all.subspan(first, together), static_cast<int64_t>(first));
    at::Tensor sum = sums[0];
    for (size_t i = 1; i < sums.size(); ++i) sum = sum + sums[i];
    (sum / targets).backward();
    for (const at::Tensor& each : sums) losses.push_back(each.item<double>());
  }
  return losses;
}

void Trainer::sum_over_ranks(std::vector<double>& losses, StepMetrics& metrics) {
  const DType dtype = parameters.gradients.scalar_type() == at::kDouble ? DType::kFloat64 : DType::kFloat32;
  fabric_.all_reduce(parameters.gradients.data_ptr(), parameters.gradients.numel(), dtype, ReduceOp::kSum,
                     "sum of gradients");
  losses.push_back(static_cast<double>(metrics.bytes));
  fabric_.all_reduce(std::span<double>(losses), ReduceOp::kSum, "sum of losses");
  metrics.bytes = static_cast<int64_t>(losses.back());
  losses.pop_back();
  fabric_.all_reduce(std::span<double>(&metrics.wait_s, 1), ReduceOp::kMax, "longest wait");
}

StepMetrics Trainer::forward_backward() {
  if (preparer_ == nullptr) preparer_ = std::make_unique<StepPreparer>(stream_, prepare_);
  const PreparedStep step = preparer_->take();
  std::vector<uint64_t> digests;
  for (const PreparedNanoBatch& nano_batch : step.nano_batches) digests.push_back(nano_batch.digest);
  check_digests(fabric_, digests);

  const int64_t bytes_before = runtime_.stats.total_bytes();
  const double wait_before = runtime_.stats.wait_s;
  parameters.gradients.zero_();
  std::vector<double> losses = run_nano_batches(step);

  StepMetrics metrics;
  metrics.step = step.batch.step;
  metrics.tokens = step.batch.tokens();
  metrics.targets = step.batch.targets();
  metrics.padding = step.batch.padding();
  count_documents(step.batch, fabric_.world_size(), metrics);
  metrics.bytes = runtime_.stats.total_bytes() - bytes_before;
  metrics.wait_s = runtime_.stats.wait_s - wait_before;
  metrics.plan_ms = step.plan_ms;
  metrics.digest = step.digest();
  for (const PreparedNanoBatch& nano_batch : step.nano_batches) {
    metrics.load_max_over_mean = std::max(metrics.load_max_over_mean, nano_batch.load_max_over_mean);
    metrics.load_max_over_mean_none =
        std::max(metrics.load_max_over_mean_none, nano_batch.load_max_over_mean_none);
  }
  sum_over_ranks(losses, metrics);
  metrics.loss = std::accumulate(losses.begin(), losses.end(), 0.0) /
                 static_cast<double>(std::max<int64_t>(1, metrics.targets));
  metrics.grad_norm = gradient_norm(parameters);
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) stop_for(step, losses, metrics);
  after_ = step.after;
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
  metrics.lr = learning_rate(config_.train, metrics.step);
  clip_gradients(parameters, metrics.grad_norm, config_.train.clip);
  adam_update(parameters, adam, config_.train, metrics.lr);
  next_step_ = metrics.step + 1;
}

StepMetrics Trainer::step() {
  const double begin = now();
  StepMetrics metrics = forward_backward();
  update(metrics);
  metrics.step_s = now() - begin;
  metrics.tokens_per_s = static_cast<double>(metrics.tokens) / metrics.step_s;
  return metrics;
}

}  // namespace distca
