// The finish-time rule. Rank r finishes at CI_r + load_r / speed_r; the best common finish time T* solves
// sum of speed_r · max(0, T* - CI_r) = total load. One rule for equal ranks, idle pipeline stages and
// dedicated servers (CI = 0), and slower devices (speed < 1).
#pragma once

#include <cstdint>
#include <vector>

namespace distca {

struct FinishTimes {
  double best = 0;                // T*, in the unit of loads at speed 1
  std::vector<int64_t> capacity;  // the load with which a server finishes at (1 + tolerance) · T*, at least 0
};

/// `speeds` and `ci` have one entry a server, or none for all 1 and all 0. All speeds must be above 0.
FinishTimes finish_times(int64_t total_load, int32_t servers, const std::vector<double>& speeds,
                         const std::vector<double>& ci, double tolerance);

}  // namespace distca
