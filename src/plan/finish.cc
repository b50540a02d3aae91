#include "plan/finish.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace distca {
namespace {

/// Servers join in the order of their CI until the next would join after all work is done.
double best_finish(double total_load, const std::vector<double>& speeds, const std::vector<double>& ci) {
  std::vector<size_t> order(ci.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return ci[a] != ci[b] ? ci[a] < ci[b] : a < b; });
  double speed = 0, head_start = 0;  // sums over those that joined, of speed and speed · CI
  double finish = 0;
  for (const size_t r : order) {
    if (speed > 0 && finish <= ci[r]) break;
    speed += speeds[r];
    head_start += speeds[r] * ci[r];
    finish = (total_load + head_start) / speed;
  }
  return finish;
}

}  // namespace

FinishTimes finish_times(int64_t total_load, int32_t servers, const std::vector<double>& speeds,
                         const std::vector<double>& ci, double tolerance) {
  FinishTimes times;
  const auto count = static_cast<size_t>(servers);
  if (speeds.empty() && ci.empty()) {
    times.best = static_cast<double>(total_load) / servers;
    times.capacity.assign(count, static_cast<int64_t>(std::floor(times.best * (1 + tolerance))));
    return times;
  }
  const std::vector<double> all_speeds = speeds.empty() ? std::vector<double>(count, 1.0) : speeds;
  const std::vector<double> all_ci = ci.empty() ? std::vector<double>(count, 0.0) : ci;
  times.best = best_finish(static_cast<double>(total_load), all_speeds, all_ci);
  for (size_t r = 0; r < count; ++r) {
    const double load = all_speeds[r] * (times.best * (1 + tolerance) - all_ci[r]);
    times.capacity.push_back(static_cast<int64_t>(std::floor(std::clamp(load, 0.0, 0x1p62))));
  }
  return times;
}

}  // namespace distca
