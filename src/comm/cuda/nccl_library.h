// NCCL behind the interface that the fabric calls.
#pragma once

#include <memory>

#include "comm/nccl_api.h"

namespace distca {

/// For a rank on CUDA device `device` of those that this process sees. One GPU a rank: NCCL refuses two ranks
/// on one.
std::shared_ptr<NcclApi> make_nccl_library(int32_t device);

}  // namespace distca
