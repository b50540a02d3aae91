#include "comm/rank_clock.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "base/clock.h"

namespace distca {

RankClocks::RankClocks(int32_t ranks, int32_t cores, const std::vector<double>& speeds)
    : states_(ranks),
      free_cores_(cores > 0 ? cores : std::max<int32_t>(1, std::thread::hardware_concurrency())) {
  for (size_t rank = 0; rank < speeds.size(); ++rank) states_[rank].speed = speeds[rank];
}

double RankClocks::now(int32_t rank) const {
  const State& state = states_[rank];
  return state.depth > 0 ? state.clock : state.clock + (thread_cpu_seconds() - state.resumed) / state.speed;
}

void RankClocks::enter(int32_t rank) {
  State& state = states_[rank];
  state.clock = now(rank);
  ++state.depth;
}

bool RankClocks::has_core(int32_t rank) {
  State& state = states_[rank];
  if (!state.has_core && free_cores_ > 0) {
    --free_cores_;
    state.has_core = true;
  }
  state.waits_for_core = !state.has_core;
  return state.has_core;
}

void RankClocks::leave(int32_t rank) {
  State& state = states_[rank];
  state.waits_for_core = false;
  --state.depth;
  state.resumed = thread_cpu_seconds();
}

int32_t RankClocks::give_core(int32_t rank) {
  if (!states_[rank].has_core) return -1;
  states_[rank].has_core = false;
  State* next = nullptr;
  for (State& state : states_) {
    if (state.waits_for_core && (next == nullptr || state.clock < next->clock)) next = &state;
  }
  if (next == nullptr) {
    ++free_cores_;
    return -1;
  }
  next->waits_for_core = false;
  next->has_core = true;
  return static_cast<int32_t>(next - states_.data());
}

void RankClocks::raise(int32_t rank, double time) {
  states_[rank].clock = std::max(states_[rank].clock, time);
}

double RankClocks::least() const {
  double least = std::numeric_limits<double>::infinity();
  for (const State& state : states_) {
    if (!state.ended) least = std::min(least, state.clock);
  }
  return least;
}

}  // namespace distca
