// The whole model on one rank, out of the parts that pipeline stages and tensor-parallel ranks hold: what a
// checkpoint stores, so that it depends on no number of ranks.
#pragma once

#include <vector>

#include "model/llama.h"
#include "train/flat_parameters.h"
#include "train/rank_grid.h"

namespace distca {

/// What a pipeline stage holds, and of it a tensor-parallel rank.
LlamaPart part_of_stage(const std::vector<int64_t>& stage_layers, int32_t stage, int32_t tp_rank, int32_t tp);

/// The model's tensors under their names, in the model's order, on rank 0; nothing elsewhere. `buffer` is
/// laid out as `parameters.values`. A collective of the ranks that hold the model.
std::vector<NamedTensor> gather_tensors(const RankFabrics& fabrics, const RankGrid& grid,
                                        const std::vector<int64_t>& stage_layers,
                                        const FlatParameters& parameters, const at::Tensor& buffer);

}  // namespace distca
