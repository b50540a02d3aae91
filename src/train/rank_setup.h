// What a run's configuration means for one of its ranks: the part of the model that it holds, and how it
// prepares, runs and links its work. Facts only; train/trainer.h makes a rank out of them, and
// train/dry_run.h one without memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend/attention_call.h"
#include "model/llama.h"
#include "train/config.h"
#include "train/flat_parameters.h"
#include "train/global_batch.h"
#include "train/optimizer.h"
#include "train/prepared_step.h"
#include "train/rank_grid.h"
#include "train/run_trace.h"
#include "train/stage_link.h"
#include "train/tick_runner.h"

namespace distca {

/// What a run is about, read and checked before its ranks begin.
struct RunInputs {
  Config config;
  LlamaConfig model;
  TokenSource source;
  at::Device device = at::kCPU;         // train.device
  std::optional<GlobalBatch> repeated;  // every step is this one
  TraceOptions trace;
  /// K/V rows that a server may hold, so that a run keeps parallel.memory_limit (train/memory_limit.h); 0: no
  /// limit.
  int64_t kv_row_limit = 0;
};

BatchInputs batch_inputs(const Config& config);
/// The run's documents from its beginning, packed as its policy does.
BatchStream make_stream(const RunInputs& inputs, const RankGrid& grid);
at::ScalarType scalar_type(const std::string& dtype);

/// Throws InputError when so many ranks don't divide as [parallel] asks.
RankGrid grid_of(const Config& config, int32_t world_size);
/// Whether all stages share their exchanges.
bool in_step(const Config& config);
std::vector<int64_t> layers_by_stage(const RunInputs& inputs);

/// The rank's tensor-parallel group, of the ranks of `fabric`.
TensorGroup make_group(Fabric& fabric, const Config& config);
/// The rank's part of the model, all weights 0; none on a dedicated server. The group is used where it has
/// several ranks.
LlamaParameters make_part(const RunInputs& inputs, const RankPlace& place, TensorGroup& group,
                          at::Device device);
AdamState make_state(const RunInputs& inputs, const RankGrid& grid, const RankPlace& place,
                     const FlatParameters& parameters);
RuntimeOptions runtime_options(const Config& config);
RunnerOptions runner_options(const RunInputs& inputs, const RankGrid& grid, const RankPlace& place);
PrepareOptions prepare_options(const RunInputs& inputs, const RankGrid& grid, const RankPlace& place);
/// Of the servers that plan together with this rank, out of those of all attention ranks.
std::vector<double> speeds_here(const std::vector<double>& all, const TickPlanOptions& ticks);
/// Null where there is one stage. A collective of the fabric's ranks.
std::unique_ptr<StageLink> make_link(Fabric& attention, const RunInputs& inputs, const RankGrid& grid,
                                     at::Device device);

}  // namespace distca
