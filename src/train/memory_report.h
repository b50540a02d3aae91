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

/// Peaks by rank, in bytes of tensors.
struct MemoryReport {
  std::vector<int64_t> predicted, measured;
};

}  // namespace distca
