// Ranks as processes with a GPU each.
#pragma once

#include <functional>

#include "comm/launch.h"
#include "comm/nccl.h"

namespace distca {

/// Runs `body` as this process's rank of the job, on the GPU of its number on this machine, or on the one GPU
/// that the launcher lets it see. An error that leaves `body` ends the job with the rank and its message on
/// standard error. Returns the process's exit code: 0, 1, or 2 for wrong input.
int run_nccl_rank(const LaunchedRank& launched, const NcclOptions& options,
                  const std::function<void(Fabric&)>& body);

}  // namespace distca
