// A run's summary as the JSON that other programs read.
#include "base/json.h"
#include "train/run.h"

namespace distca {
namespace {

Json breakdown_json(const std::vector<RankBreakdown>& ranks) {
  Json out = Json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    Json one = {{"rank", ranks[rank].rank}, {"step_s", ranks[rank].step_s}};
    for (const WorkKind kind : kBreakdownKinds) one[std::string(name_of(kind)) + "_s"] = ranks[rank].of(kind);
    one["other_s"] = ranks[rank].other();
    out.push_back(std::move(one));
  }
  return out;
}

Json memory_json(const MemoryReport& memory) {
  Json out = {{"predicted", memory.predicted}, {"measured", memory.measured}};
  for (const SharedDevice& device : memory.shared) {
    out["shared"].push_back(Json{
        {"ranks", device.ranks}, {"measured", device.measured}, {"predicted", memory.predicted_for(device)}});
  }
  return out;
}

}  // namespace

std::string RunSummary::json() const {
  Json out = {{"first_step", first_step},
              {"steps", steps},
              {"first_loss", first_loss},
              {"last_loss", last_loss},
              {"tokens", tokens},
              {"padding", padding},
              {"seconds", seconds},
              {"tokens_per_s", seconds > 0 ? static_cast<double>(tokens) / seconds : 0},
              {"load_max_over_mean", load_max_over_mean},
              {"load_max_over_mean_none", load_max_over_mean_none},
              {"bytes_per_step", bytes},
              {"wait_s_per_step", wait_s},
              {"memory", memory_json(memory)},
              {"checkpoint", checkpoint},
              {"held_rows", planning.held_rows},
              {"held_rows_max_over_mean", planning.held_rows_max_over_mean},
              {"bubble", bubble_of(breakdown)},
              {"breakdown", breakdown_json(breakdown)}};
  if (planning.idle_share > 0) out["idle_done"] = planning.idle_load / planning.idle_share;
  return out.dump(2) + "\n";
}

}  // namespace distca
