// Which rank does what. A run of (dp · pp + servers) · tp ranks: each tensor-parallel index has its own
// attention ranks, which plan and exchange among themselves: first stage after stage of dp model ranks, then
// the dedicated servers. World rank = attention rank · tp + tensor-parallel index, so that a tensor-parallel
// group is a run of neighbours.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/fabric.h"

namespace distca {

struct RankGrid {
  int32_t dp = 1, pp = 1, tp = 1, servers = 0;  // dedicated servers per tensor-parallel index

  int32_t model_ranks() const { return dp * pp; }  // per tensor-parallel index
  int32_t attention_ranks() const { return model_ranks() + servers; }
  int32_t world_size() const { return attention_ranks() * tp; }
  int32_t world_rank(int32_t attention_rank, int32_t tp_rank) const { return attention_rank * tp + tp_rank; }
};

/// Throws InputError that names all the numbers when `world_size` ranks can't be divided so.
RankGrid make_grid(int32_t world_size, int64_t pp, int64_t tp, int64_t servers);

struct RankPlace {
  int32_t tp_rank = 0;
  int32_t attention_rank = 0;
  bool server = false;               // a dedicated one: holds no model
  int32_t stage = -1, dp_rank = -1;  // of a rank that holds a part of the model
};

RankPlace place_of(const RankGrid& grid, int32_t world_rank);

/// Layers of each stage, as even as they go; the stages that hold more come first. Throws InputError when
/// `given` (a count for each stage, empty: none given) or the number of stages doesn't suit the model.
std::vector<int64_t> layers_of_stages(int64_t layers, int64_t stages, const std::vector<double>& given = {});

/// The groups that a rank talks to. Ranks are numbered in each by their place in the grid.
struct RankFabrics {
  Fabric& world;
  std::unique_ptr<Fabric> attention;  // same tensor-parallel index, servers included
  std::unique_ptr<Fabric> model;      // all ranks that hold a part of the model; of a server: all servers
  std::unique_ptr<Fabric> tensor;     // the tensor-parallel group
  std::unique_ptr<Fabric> data;       // same stage and tensor-parallel index: they hold the same parameters
  std::unique_ptr<Fabric> ends;  // with tied embeddings: the ranks of first and last stage that share them
};

/// A collective of all ranks, of which this one has `place`.
RankFabrics make_fabrics(Fabric& world, const RankGrid& grid, const RankPlace& place, bool tied_ends);
/// The same where ranks have the places of their numbers.
RankFabrics make_fabrics(Fabric& world, const RankGrid& grid, bool tied_ends);

}  // namespace distca
