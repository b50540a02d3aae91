#include "train/rank_grid.h"

#include <cmath>
#include <numeric>

#include "base/check.h"

namespace distca {

RankGrid make_grid(int32_t world_size, int64_t pp, int64_t tp, int64_t servers) {
  DISTCA_CHECK_INPUT(world_size % tp == 0,
                     "{} ranks don't divide into tensor-parallel groups of parallel.tp = {}", world_size, tp);
  const int64_t model_ranks = world_size / tp - servers;
  DISTCA_CHECK_INPUT(model_ranks >= pp && model_ranks % pp == 0,
                     "{} ranks are (dp · pp + servers) · tp for no dp: with parallel.tp = {} and "
                     "parallel.servers = {} there are {} for parallel.pp = {} stages",
                     world_size, tp, servers, model_ranks, pp);
  RankGrid grid;
  grid.dp = static_cast<int32_t>(model_ranks / pp);
  grid.pp = static_cast<int32_t>(pp);
  grid.tp = static_cast<int32_t>(tp);
  grid.servers = static_cast<int32_t>(servers);
  return grid;
}

RankPlace place_of(const RankGrid& grid, int32_t world_rank) {
  RankPlace place;
  place.tp_rank = world_rank % grid.tp;
  place.attention_rank = world_rank / grid.tp;
  place.server = place.attention_rank >= grid.model_ranks();
  if (!place.server) {
    place.stage = place.attention_rank / grid.dp;
    place.dp_rank = place.attention_rank % grid.dp;
  }
  return place;
}

std::vector<int64_t> layers_of_stages(int64_t layers, int64_t stages, const std::vector<double>& given) {
  std::vector<int64_t> out;
  if (given.empty()) {
    DISTCA_CHECK_INPUT(stages <= layers, "parallel.pp = {} stages for a model of {} layers: each needs one",
                       stages, layers);
    for (int64_t stage = 0; stage < stages; ++stage) out.push_back((layers + stages - 1 - stage) / stages);
    return out;
  }
  for (const double count : given) {
    DISTCA_CHECK_INPUT(count >= 1 && count == std::floor(count),
                       "parallel.stage_layers holds {}: each stage has a whole number of layers, at least 1",
                       count);
    out.push_back(static_cast<int64_t>(count));
  }
  const int64_t sum = std::accumulate(out.begin(), out.end(), int64_t{0});
  DISTCA_CHECK_INPUT(static_cast<int64_t>(out.size()) == stages && sum == layers,
                     "parallel.stage_layers gives {} stages {} layers in all; parallel.pp = {} and the model "
                     "has {} layers",
                     out.size(), sum, stages, layers);
  return out;
}

RankFabrics make_fabrics(Fabric& world, const RankGrid& grid, bool tied_ends) {
  return make_fabrics(world, grid, place_of(grid, world.rank()), tied_ends);
}

RankFabrics make_fabrics(Fabric& world, const RankGrid& grid, const RankPlace& place, bool tied_ends) {
  RankFabrics fabrics{world, nullptr, nullptr, nullptr, nullptr, nullptr};
  fabrics.attention = world.split(place.tp_rank, "the attention ranks of a tensor-parallel index");
  fabrics.model = world.split(place.server ? 1 : 0, "the ranks that hold the model");
  fabrics.tensor = world.split(place.attention_rank, "the tensor-parallel groups");
  const int32_t stage = place.server ? grid.pp : place.stage;
  fabrics.data = world.split(stage * grid.tp + place.tp_rank, "the data-parallel groups");
  if (tied_ends && grid.pp > 1) {
    const bool holds = !place.server && (place.stage == 0 || place.stage == grid.pp - 1);
    const int32_t color = place.dp_rank * grid.tp + place.tp_rank;
    fabrics.ends = world.split(holds ? color : grid.world_size(), "the ranks that share tied embeddings");
    if (!holds) fabrics.ends = nullptr;
  }
  return fabrics;
}

}  // namespace distca
