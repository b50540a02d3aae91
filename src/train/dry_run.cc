#include "train/dry_run.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/resize.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "attend/live_bytes.h"
#include "base/check.h"
#include "comm/dry.h"
#include "train/flat_parameters.h"
#include "train/gather.h"
#include "train/optimizer.h"

namespace distca {
namespace {

class NoKernel : public AttentionKernel {
 public:
  std::string name() const override { return "none"; }
  void forward(const AttentionShape&, const KernelTasks&, const RowPair&, const RowPair&, const RowPair&,
               const RowPair&, const RowPair&) override {}
  void backward(const AttentionShape&, const KernelTasks&, KernelBackward&) override {}
};

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] = index.numel();
  return at::empty(sizes, x.options());
}

at::Tensor& index_select_out(const at::Tensor&, int64_t, const at::Tensor&, at::Tensor& out) {
  return out;
}

at::Tensor& unary_out(const at::Tensor& x, at::Tensor& out) {
  out.resize_(x.sizes());
  return out;
}

at::Tensor& binary_out(const at::Tensor& x, const at::Tensor& y, at::Tensor& out) {
  out.resize_(at::infer_size(x.sizes(), y.sizes()));
  return out;
}

at::Tensor where_self(const at::Tensor& condition, const at::Tensor& x, const at::Tensor& y) {
  return at::empty(at::infer_size(condition.sizes(), at::infer_size(x.sizes(), y.sizes())), x.options());
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor&, c10::SymInt rows, c10::SymInt,
                                    bool) {
  return at::empty({rows.expect_int(), grad.size(-1)}, grad.options());
}

/// Sizes for the few operators of ours that PyTorch knows no sizes of in C++, and a kernel that does nothing.
void make_runnable_without_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    library.impl("index_select", index_select);
    library.impl("index_select.out", index_select_out);
    library.impl("abs.out", unary_out);
    library.impl("logical_not.out", unary_out);
    library.impl("logical_and.out", binary_out);
    library.impl("logical_or.out", binary_out);
    library.impl("where.self", where_self);
    library.impl("embedding_dense_backward", embedding_dense_backward);
    register_attention_kernel("none", at::kMeta, [](int) { return std::make_unique<NoKernel>(); });
  });
}

void note(const PreparedStep& step, PeakMemory& memory) {
  memory.worst_finish = std::max(memory.worst_finish, step.load_max_over_mean);
  memory.beyond_row_limit += step.beyond_row_limit;
  for (const PreparedTick& tick : step.ticks)
    for (const auto& slots : tick.slots)
      for (const auto& tables : slots)
        if (tables != nullptr) memory.kv_rows = std::max(memory.kv_rows, tables->tables->kv.server_rows);
}

/// What the largest of `all` numbers is likely to be, of which `first` are the first: of n normal ones it
/// lies about √(2 ln n) standard deviations above the mean. One deviation more is added: the largest of a few
/// may be a low one.
double most_of_more(const std::vector<double>& first, int64_t all) {
  const double most = first.empty() ? 0 : *std::max_element(first.begin(), first.end());
  const auto known = static_cast<double>(first.size());
  if (first.size() < 3 || known >= static_cast<double>(all)) return most;
  // Not the very first, before whose end nothing is held for later.
  double sum = 0, squares = 0;
  for (size_t i = 1; i < first.size(); ++i) sum += first[i];
  const double mean = sum / (known - 1);
  for (size_t i = 1; i < first.size(); ++i) squares += (first[i] - mean) * (first[i] - mean);
  const double further = std::sqrt(2 * std::log(static_cast<double>(all))) - std::sqrt(2 * std::log(known));
  return most + (1 + further) * std::sqrt(squares / (known - 2));
}

RankFabrics dry_fabrics(Fabric& world, const RankGrid& grid, const RankPlace& place) {
  RankFabrics out{world, {}, {}, {}, {}, {}};
  out.attention = make_dry_fabric(place.attention_rank, grid.attention_ranks());
  out.model = make_dry_fabric(world.rank(), grid.model_ranks() * grid.tp);
  out.tensor = make_dry_fabric(place.tp_rank, grid.tp);
  out.data = make_dry_fabric(std::max(0, place.dp_rank), grid.dp);
  return out;
}

/// One rank, as Trainer has it.
struct DryRank {
  DryRank(const RunInputs& inputs, const DryRunOptions& options)
      : grid(grid_of(inputs.config, options.world_size)),
        place(place_of(grid, options.rank)),
        world(make_dry_fabric(options.rank, options.world_size)),
        fabrics(dry_fabrics(*world, grid, place)),
        group(make_group(*fabrics.tensor, inputs.config)),
        parameters(flatten(make_part(inputs, place, group, at::kMeta))),
        adam(make_state(inputs, grid, place, parameters)),
        runtime(in_step(inputs.config) ? *fabrics.attention : *fabrics.data, meta_options(inputs.config),
                at::kMeta),
        link(make_link(*fabrics.attention, inputs, grid, at::kMeta)),
        runner(parameters.model, runtime, link.get(), runner_options(inputs, grid, place)) {}

  /// What a checkpoint collects on rank 0.
  void gather_checkpoint(const std::vector<int64_t>& stage_layers) const {
    if (place.server) return;
    std::vector<std::vector<NamedTensor>> all;
    const bool whole = adam.exp_avg.numel() == parameters.values.numel();
    for (const at::Tensor* buffer : {&parameters.values, &adam.exp_avg, &adam.exp_avg_sq}) {
      const at::Tensor all_of_it = whole ? *buffer : at::empty_like(parameters.values);
      all.push_back(gather_tensors(fabrics, grid, stage_layers, parameters, all_of_it));
    }
  }

  static RuntimeOptions meta_options(const Config& config) {
    RuntimeOptions options = runtime_options(config);
    options.kernel = "none";
    return options;
  }

  RankGrid grid;
  RankPlace place;
  std::unique_ptr<Fabric> world;
  RankFabrics fabrics;
  TensorGroup group;
  FlatParameters parameters;
  AdamState adam;
  AttentionRuntime runtime;
  std::unique_ptr<StageLink> link;
  TickRunner runner;
};

}  // namespace

PeakMemory dry_run(const RunInputs& inputs, BatchStream stream, const DryRunOptions& options) {
  enable_live_bytes();
  make_runnable_without_memory();
  LiveBytes& count = new_live_bytes();
  PeakMemory memory;
  // Outside the count: what only finding out needs.
  const RankGrid grid = grid_of(inputs.config, options.world_size);
  const int64_t left = inputs.config.train.steps - stream.state().step;
  StepPreparer preparer(std::move(stream), prepare_options(inputs, grid, place_of(grid, options.rank)));
  std::vector<PreparedStep> prepared;
  const auto prepare = [&] {
    PreparedStep step = preparer.take();
    note(step, memory);
    const LiveBytesScope scope(&count);
    prepared.push_back(on_device(std::move(step), at::kMeta));
  };
  std::unique_ptr<DryRank> rank;
  {
    const LiveBytesScope scope(&count);
    rank = std::make_unique<DryRank>(inputs, options);
  }
  memory.state = count.now();
  const int64_t steps = std::min(options.steps, left);
  std::vector<double> peaks;
  for (int64_t step = 0; step < steps; ++step) {
    count.reset_peak();
    if (prepared.empty()) prepare();
    if (step + 1 < left) prepare();  // while this one runs
    const LiveBytesScope scope(&count);
    rank->runner.run(prepared[0].ticks, prepared[0].nano_batches, 1);
    rank->runtime.pool.trim();
    prepared.erase(prepared.begin());
    peaks.push_back(static_cast<double>(count.peak()));
  }
  memory.peak = static_cast<int64_t>(most_of_more(peaks, left));
  if (!inputs.config.checkpoint.dir.empty()) {
    count.reset_peak();
    const LiveBytesScope scope(&count);
    rank->gather_checkpoint(layers_by_stage(inputs));
    memory.peak = std::max(memory.peak, count.peak());
  }
  return memory;
}

}  // namespace distca
