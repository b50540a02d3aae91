// What each rank of a run is predicted to need and what it needed: said before the first step and after the
// last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attend/live_bytes.h"
#include "train/dry_run.h"

namespace distca {

/// "1.5 GiB", "37 MiB", "812 bytes".
std::string bytes_text(int64_t bytes);

/// "1.5 GiB on rank 3, 1.1 GiB on rank 0 at the least".
std::string extremes_text(const std::vector<int64_t>& by_rank);

/// Every rank's number, by rank. A collective.
std::vector<int64_t> gather_numbers(Fabric& world, int64_t own, const std::string& name);

/// A device that several ranks share, and the most bytes of tensors that they had there together.
struct SharedDevice {
  std::vector<int32_t> ranks;
  int64_t measured = 0;
};

/// Peaks by rank, in bytes of tensors where the run computes.
struct MemoryReport {
  std::vector<int64_t> predicted;
  std::vector<int64_t> measured;     // none where ranks share a device: nobody tells their tensors apart
  std::vector<SharedDevice> shared;  // and these instead
  /// What was predicted for the ranks of a shared device together; they needn't be at their peaks at once. 0
  /// without predictions.
  int64_t predicted_for(const SharedDevice& device) const;
};

/// Which of them a run measured, by each rank's device (device_identity()) and that rank's measure.
void set_measured(MemoryReport& report, const std::vector<int64_t>& devices,
                  const std::vector<int64_t>& peaks);

}  // namespace distca
