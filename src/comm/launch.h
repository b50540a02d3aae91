// How a process learns from its launcher which rank it is: torchrun's variables, Open MPI's, or Slurm's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace distca {

struct LaunchedRank {
  std::string launcher;  // "torchrun", "mpirun", "srun"
  int32_t rank = 0, world_size = 1;
  int32_t local_rank = 0;  // among those of this machine
  std::string host;        // where the ranks' table of strings is reached
  int32_t port = 0;
  bool is_served = false;  // the launcher keeps that table; else rank 0 does
  int32_t attempt = 0;     // how often torchrun has started the ranks anew
};

/// std::getenv, or a test's.
using Environment = std::function<const char*(const char* name)>;

/// Nothing where no launcher started this process. Of several, the innermost counts: torchrun, then mpirun,
/// then srun. MASTER_ADDR and MASTER_PORT say where the ranks meet: torchrun sets them, with the others they
/// are the user's to set (a port that is free on the machine of rank 0). Throws InputError that names a
/// variable that is missing or malformed.
std::optional<LaunchedRank> launched_rank(const Environment& environment);

}  // namespace distca
