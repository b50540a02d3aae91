// The order of a step's work over pipeline stages, as data. In a tick every stage that shares exchanges runs
// the same phase, forward or backward, each on a micro-batch of its own or on none; stages without one serve
// attention.
//
// Same phase (P stages, M micro-batches): stage s runs micro-batch i − s in forward tick i, and in backward
// tick j micro-batch j − (P − 1 − s), which follows forward tick j + P − 1:
//
//   P = 2, M = 3:   F0  F1  B0  F2  B1  F3  B2  B3
//      stage 0      0   1   ·   2   0   ·   1   2
//      stage 1      ·   0   0   1   1   2   2   ·
//
// 1F1B (Narayanan et al., "Efficient large-scale language model training on GPU clusters", section 2.2): each
// stage goes through forwards and backwards on its own, and shares exchanges with its data-parallel peers
// alone.
#pragma once

#include <cstdint>
#include <vector>

namespace distca {

enum class PipelineSchedule { kSamePhase, kOneForwardOneBackward };

/// No micro-batch: the stage serves only.
inline constexpr int64_t kIdle = -1;

struct Tick {
  bool forward = true;
  int64_t number = 0;                  // among the ticks of its direction
  std::vector<int64_t> micro_batches;  // of each stage that shares its exchanges, or kIdle

  friend bool operator==(const Tick&, const Tick&) = default;
};

/// Ticks of all stages together.
std::vector<Tick> same_phase_ticks(int64_t stages, int64_t micro_batches);

/// Ticks of one stage, which shares exchanges with no other: their lists have one entry.
std::vector<Tick> one_forward_one_backward_ticks(int64_t stages, int64_t stage, int64_t micro_batches);

}  // namespace distca
