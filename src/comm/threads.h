// Ranks as threads of one process.
#pragma once

#include "comm/fabric.h"

namespace distca {

/// Runs `body` as `ranks` ranks, one thread each, and returns when all have ended. When a rank throws, all
/// waits of the others end, and the error of the rank that failed first is thrown here, its rank named; a
/// rank that `options.can_lose` lets go is lost, and the others go on when they call Fabric::survivors().
void run_thread_ranks(int32_t ranks, const FabricOptions& options, const std::function<void(Fabric&)>& body);

/// The same on virtual clocks by which each rank computes at a speed of its own, 1 being this machine's.
/// Empty: all 1.
void run_thread_ranks(int32_t ranks, const FabricOptions& options, const std::vector<double>& speeds,
                      const std::function<void(Fabric&)>& body);

}  // namespace distca
