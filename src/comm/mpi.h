// Ranks as MPI processes. A thread of its own makes all MPI calls, so that exchanges progress while compute
// runs.
#pragma once

#include "comm/fabric.h"

namespace distca {

/// True when this process was started by mpirun or srun with MPI support (before MPI is initialised).
bool launched_by_mpi();

/// Initialises MPI, runs `body` as this process's rank of the world, and finalises. An error that leaves
/// `body` ends the job with the rank and its message on standard error; a launcher that dies takes its ranks
/// with it. Returns the process's exit code.
int run_mpi_rank(const FabricOptions& options, const std::function<void(Fabric&)>& body);

}  // namespace distca
