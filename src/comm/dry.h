// A rank of a job that isn't there, for programs that run without numbers to find out what they would need:
// every operation is done at once and moves nothing.
#pragma once

#include <memory>

#include "comm/fabric.h"

namespace distca {

/// Rank `rank` of `world_size`. What split() returns has the same rank and size.
std::unique_ptr<Fabric> make_dry_fabric(int32_t rank, int32_t world_size);

}  // namespace distca
