#include "train/memory_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "base/check.h"

namespace distca {

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value >= 100 ? "%.0f %s" : "%.3g %s", value, kUnits[unit]);
  return text;
}

std::string extremes_text(const std::vector<int64_t>& by_rank) {
  const auto [least, most] = std::minmax_element(by_rank.begin(), by_rank.end());
  std::string out = format("{} on rank {}", bytes_text(*most), most - by_rank.begin());
  if (by_rank.size() > 1)
    out += format(", {} on rank {} at the least", bytes_text(*least), least - by_rank.begin());
  return out;
}

int64_t MemoryReport::predicted_for(const SharedDevice& device) const {
  int64_t sum = 0;
  if (predicted.empty()) return sum;
  for (const int32_t rank : device.ranks) sum += predicted[static_cast<size_t>(rank)];
  return sum;
}

void set_measured(MemoryReport& report, const std::vector<int64_t>& devices,
                  const std::vector<int64_t>& peaks) {
  std::map<int64_t, SharedDevice> by_device;
  bool shared = false;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    if (devices[rank] == 0) continue;  // the CPU's tensors are counted rank by rank
    SharedDevice& device = by_device[devices[rank]];
    device.ranks.push_back(static_cast<int32_t>(rank));
    device.measured = std::max(device.measured, peaks[rank]);
    shared = shared || device.ranks.size() > 1;
  }
  report.measured.clear(), report.shared.clear();
  if (!shared) {
    report.measured = peaks;
    return;
  }
  for (const auto& [identity, device] : by_device) report.shared.push_back(device);
}

std::vector<int64_t> gather_numbers(Fabric& world, int64_t own, const std::string& name) {
  std::vector<int64_t> all(static_cast<size_t>(world.world_size()));
  world.all_gather(&own, all.data(), sizeof own, name);
  return all;
}

}  // namespace distca
