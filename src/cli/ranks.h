// How a command's ranks are started: threads of this process, or processes of a launcher; on CPUs, or on CUDA
// devices, where fabrics move device memory.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "comm/fabric.h"

namespace distca {

/// Whether a launcher started this process as one rank of a job: mpirun or srun, or with devices torchrun
/// too. Throws InputError for torchrun without them.
bool launched_as_rank(at::DeviceType device);

/// As that rank. Returns the process's exit code.
int run_launched_rank(at::DeviceType device, const FabricOptions& options,
                      const std::function<void(Fabric&)>& body);

/// As threads, with clocks of those speeds; on a CUDA device all share it.
void run_ranks_as_threads(int32_t ranks, at::Device device, const FabricOptions& options,
                          const std::vector<double>& speeds, const std::function<void(Fabric&)>& body);

}  // namespace distca
