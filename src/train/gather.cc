#include "train/gather.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <map>
#include <numeric>
#include <string>

#include "base/check.h"

namespace distca {
namespace {

/// A tensor, the first stage that holds it, and how the ranks there share it.
struct Held {
  TensorSpec spec;  // of a rank's slice
  int32_t stage = 0;
};

/// All tensors of the model, in its order.
std::vector<Held> where_tensors_are(const LlamaConfig& config, const std::vector<int64_t>& stage_layers,
                                    int32_t tp) {
  std::map<std::string, Held> held;
  for (int32_t stage = 0; stage < static_cast<int32_t>(stage_layers.size()); ++stage) {
    for (const TensorSpec& spec : llama_tensors(config, part_of_stage(stage_layers, stage, 0, tp)))
      held.insert({spec.name, {spec, stage}});
  }
  std::vector<Held> out;
  for (const TensorSpec& spec : llama_tensors(config, LlamaPart::whole(config)))
    out.push_back(held.at(spec.name));
  return out;
}

const FlatEntry* find(const FlatParameters& parameters, const std::string& name) {
  for (const FlatEntry& entry : parameters.entries)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace

LlamaPart part_of_stage(const std::vector<int64_t>& stage_layers, int32_t stage, int32_t tp_rank,
                        int32_t tp) {
  LlamaPart part;
  part.layer_begin = std::accumulate(stage_layers.begin(), stage_layers.begin() + stage, int64_t{0});
  part.layer_end = part.layer_begin + stage_layers[static_cast<size_t>(stage)];
  part.embedding = stage == 0;
  part.head = stage + 1 == static_cast<int32_t>(stage_layers.size());
  part.tp_rank = tp_rank;
  part.tp_size = tp;
  return part;
}

std::vector<NamedTensor> gather_tensors(const RankFabrics& fabrics, const RankGrid& grid,
                                        const std::vector<int64_t>& stage_layers,
                                        const FlatParameters& parameters, const at::Tensor& buffer) {
  Fabric& fabric = *fabrics.model;
  const bool collects = fabric.rank() == 0;
  std::vector<NamedTensor> out;
  const LlamaConfig& config = parameters.model.config;
  for (const Held& held : where_tensors_are(config, stage_layers, grid.tp)) {
    const Sharding& sharding = held.spec.sharding;
    std::vector<at::Tensor> shards;
    for (int32_t t = 0; t < sharding.count; ++t) {
      const int32_t owner = grid.world_rank(held.stage * grid.dp, t);
      const std::string what = "gathering of " + held.spec.name;
      at::Tensor shard;
      if (fabric.rank() == owner) {
        const FlatEntry* entry = find(parameters, held.spec.name);
        DISTCA_CHECK(entry != nullptr, "stage {} doesn't hold {}", held.stage, held.spec.name);
        shard = FlatParameters::view(buffer, *entry);
        if (!collects) fabric.send(shard.data_ptr(), static_cast<int64_t>(shard.nbytes()), 0, what);
      } else if (collects) {
        shard = at::empty(held.spec.shape, buffer.options());
        fabric.receive(shard.data_ptr(), static_cast<int64_t>(shard.nbytes()), owner, what);
      }
      if (collects) shards.push_back(shard);
    }
    if (collects)
      out.push_back({held.spec.name, shards.size() == 1 ? shards[0] : at::cat(shards, sharding.dim)});
  }
  return out;
}

}  // namespace distca
