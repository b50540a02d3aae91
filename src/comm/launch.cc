#include "comm/launch.h"

#include <charconv>
#include <cstring>

#include "base/check.h"

namespace distca {
namespace {

/// The variables of one launcher.
struct Names {
  const char *launcher, *rank, *world_size, *local_rank;
};

constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

std::string text_of(const Environment& environment, const std::string& launcher, const char* name,
                    const char* what) {
  const char* value = environment(name);
  DISTCA_CHECK_INPUT(value != nullptr && *value != '\0', "started by {}, but the variable {} is not set: {}",
                     launcher, name, what);
  return value;
}

int32_t number_of(const Environment& environment, const std::string& launcher, const char* name,
                  const char* what, int32_t least, int32_t most) {
  const std::string value = text_of(environment, launcher, name, what);
  int32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  DISTCA_CHECK_INPUT(
      error == std::errc() && end == value.data() + value.size() && number >= least && number <= most,
      "the variable {} is '{}', not a number from {} to {}: {}", name, value, least, most, what);
  return number;
}

}  // namespace

std::optional<LaunchedRank> launched_rank(const Environment& environment) {
  constexpr int32_t kMost = 1 << 24;
  for (const Names& names : kLaunchers) {
    if (environment(names.rank) == nullptr) continue;
    LaunchedRank out;
    out.launcher = names.launcher;
    const auto number = [&](const char* name, const char* what, int32_t least, int32_t most) {
      return number_of(environment, out.launcher, name, what, least, most);
    };
    out.world_size = number(names.world_size, "the number of ranks", 1, kMost);
    out.rank = number(names.rank, "this process's rank", 0, out.world_size - 1);
    out.local_rank = number(names.local_rank, "the rank among those of this machine", 0, kMost);
    out.host = text_of(environment, out.launcher, "MASTER_ADDR", "the machine of rank 0, where ranks meet");
    out.port = number("MASTER_PORT", "a port on the machine of rank 0, where ranks meet", 1, 65535);
    if (std::strcmp(names.launcher, "torchrun") == 0) {
      const char* served = environment("TORCHELASTIC_USE_AGENT_STORE");
      out.is_served = served != nullptr && std::strcmp(served, "True") == 0;
      if (environment("TORCHELASTIC_RESTART_COUNT") != nullptr)
        out.attempt = number("TORCHELASTIC_RESTART_COUNT", "how often the ranks were started anew", 0, kMost);
    }
    return out;
  }
  return std::nullopt;
}

}  // namespace distca
