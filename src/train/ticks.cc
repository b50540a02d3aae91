#include "train/ticks.h"

#include <algorithm>

namespace distca {
namespace {

int64_t within(int64_t micro_batch, int64_t micro_batches) {
  return micro_batch >= 0 && micro_batch < micro_batches ? micro_batch : kIdle;
}

}  // namespace

std::vector<Tick> same_phase_ticks(int64_t stages, int64_t micro_batches) {
  const int64_t ticks = micro_batches + stages - 1;
  std::vector<Tick> out;
  const auto add = [&](bool forward, int64_t number) {
    Tick tick{forward, number, {}};
    for (int64_t stage = 0; stage < stages; ++stage) {
      const int64_t behind = forward ? stage : stages - 1 - stage;
      tick.micro_batches.push_back(within(number - behind, micro_batches));
    }
    out.push_back(std::move(tick));
  };
  for (int64_t i = 0; i < ticks + stages - 1; ++i) {
    if (i < ticks) add(true, i);
    if (i >= stages - 1) add(false, i - (stages - 1));
  }
  return out;
}

std::vector<Tick> one_forward_one_backward_ticks(int64_t stages, int64_t stage, int64_t micro_batches) {
  const int64_t warm_up = std::min(stages - 1 - stage, micro_batches);
  std::vector<Tick> out;
  for (int64_t i = 0; i < micro_batches + warm_up; ++i) {
    if (i < micro_batches) out.push_back({true, i, {i}});
    if (i >= warm_up) out.push_back({false, i - warm_up, {i - warm_up}});
  }
  return out;
}

}  // namespace distca
