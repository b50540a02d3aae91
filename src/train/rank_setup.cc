#include "train/rank_setup.h"

#include <ATen/Parallel.h>

#include "train/gather.h"
#include "train/plan_costs.h"
#include "train/speeds.h"

namespace distca {
namespace {

LlamaPart part_of(const RunInputs& inputs, const RankPlace& place, int32_t tp) {
  if (place.server) return {0, 0, false, false};
  return part_of_stage(layers_by_stage(inputs), place.stage, place.tp_rank, tp);
}

}  // namespace

RuntimeOptions runtime_options(const Config& config) {
  RuntimeOptions options;
  options.kernel = config.attention.kernel;
  options.threads = at::get_num_threads();
  options.memory = config.keeps_on_server() ? AttentionMemory::kKeep : AttentionMemory::kResend;
  return options;
}

bool in_step(const Config& config) {
  return config.parallel.schedule == "same_phase";
}

std::vector<int64_t> layers_by_stage(const RunInputs& inputs) {
  return layers_of_stages(inputs.model.num_hidden_layers, inputs.config.parallel.pp,
                          inputs.config.parallel.stage_layers);
}

LlamaParameters make_part(const RunInputs& inputs, const RankPlace& place, TensorGroup& group,
                          at::Device device) {
  const auto options = at::TensorOptions().dtype(scalar_type(inputs.config.model.dtype)).device(device);
  LlamaParameters model = make_llama(inputs.model, part_of(inputs, place, group.size()), options);
  if (group.size() > 1) model.group = &group;
  return model;
}

TensorGroup make_group(Fabric& fabric, const Config& config) {
  TensorGroup group(fabric);
  // One after the other, nothing overlaps.
  if (config.attention.overlap == "single") group.runs = 1;
  return group;
}

AdamState make_state(const RunInputs& inputs, const RankGrid& grid, const RankPlace& place,
                     const FlatParameters& parameters) {
  if (!inputs.config.parallel.shard_optimizer || place.server) return make_adam_state(parameters);
  return make_adam_state(parameters, grid.dp, place.dp_rank);
}

RunnerOptions runner_options(const RunInputs& inputs, const RankGrid& grid, const RankPlace& place) {
  const bool together = in_step(inputs.config);
  RunnerOptions options;
  options.interleave = inputs.config.attention.overlap != "single";
  options.recompute = inputs.config.parallel.recompute == "selective";
  options.graphs = inputs.config.attention.graphs;
  options.layers = layers_by_stage(inputs);
  options.in_step = together;
  if (!together) options.layers = {options.layers[place.stage]};
  options.stage = place.server ? grid.pp : together ? place.stage : 0;
  options.last_stage = place.stage == grid.pp - 1;
  options.shape = attention_shape(inputs.model, grid.tp);
  options.dtype = scalar_type(inputs.config.model.dtype);
  options.tp = grid.tp;
  return options;
}

PrepareOptions prepare_options(const RunInputs& inputs, const RankGrid& grid, const RankPlace& place) {
  const Config& config = inputs.config;
  PrepareOptions options;
  options.schedule =
      in_step(config) ? PipelineSchedule::kSamePhase : PipelineSchedule::kOneForwardOneBackward;
  options.place = place;
  options.model = inputs.model;
  options.dtype = scalar_type(config.model.dtype);
  options.nano_batches = config.train.nano_batches;
  options.steps = config.train.steps;
  options.device = inputs.device;
  TickPlanOptions& ticks = options.ticks;
  ticks.grid = grid;
  ticks.stage_begin = in_step(config) ? 0 : place.stage;
  ticks.stage_end = in_step(config) ? grid.pp : place.stage + 1;
  ticks.stage_layers = layers_by_stage(inputs);
  ticks.keep = config.keeps_on_server();
  ticks.rank = in_step(config) ? place.attention_rank : place.dp_rank;
  ticks.plan.policy = policy_named(config.attention.policy);
  ticks.plan.layout = config.attention.layout == "free" ? LayoutKind::kFree : LayoutKind::kFixed;
  ticks.plan.tolerance = config.attention.tolerance;
  ticks.plan.kv_row_limit = inputs.kv_row_limit;
  ticks.plan.cp = static_cast<int32_t>(config.parallel.cp);
  ticks.plan.search_moves = config.attention.search;
  const AttentionShape shape = ticks.shape = attention_shape(inputs.model, grid.tp);
  ticks.kernel = make_attention_kernel(config.attention.kernel, inputs.device.type(), /*threads=*/1);
  const LayerHeads heads = {shape.heads, shape.kv_heads, shape.head_dim,
                            static_cast<int64_t>(c10::elementSize(options.dtype))};
  ticks.plan.bytes = row_bytes(heads);
  set_costs(config, inputs.model, heads, ticks);
  check_speeds(config.parallel.speeds, grid);
  ticks.plan.speeds = speeds_here(ServerSpeeds(config.parallel.speeds, grid).next(), ticks);
  return options;
}

std::vector<double> speeds_here(const std::vector<double>& all, const TickPlanOptions& ticks) {
  const int32_t begin = ticks.stage_begin * ticks.grid.dp;
  return speeds_of(all, begin, begin + ticks.servers());
}

std::unique_ptr<StageLink> make_link(Fabric& attention, const RunInputs& inputs, const RankGrid& grid,
                                     at::Device device) {
  if (grid.pp == 1) return nullptr;
  const StageTraffic traffic{inputs.model.hidden_size, scalar_type(inputs.config.model.dtype), device};
  return in_step(inputs.config) ? make_link_in_step(attention, grid, traffic)
                                : make_link_by_pairs(attention, grid, traffic);
}

RankGrid grid_of(const Config& config, int32_t world_size) {
  return make_grid(world_size, config.parallel.pp, config.parallel.tp, config.parallel.servers);
}

BatchStream make_stream(const RunInputs& inputs, const RankGrid& grid) {
  BatchStream stream(inputs.source, batch_inputs(inputs.config));
  const auto cp = static_cast<int32_t>(inputs.config.parallel.cp);
  if (inputs.config.attention.policy == "wlb" && grid.dp % cp == 0) stream.pack_by_workload(grid.dp / cp);
  return stream;
}

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

}  // namespace distca
