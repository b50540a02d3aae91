// A CUDA device as a Fabric sees it: PyTorch's current streams and allocators, streams and events of the CUDA
// runtime.
#pragma once

#include <memory>

#include "comm/device.h"

namespace distca {

/// Device `index` of those that this process sees. Throws InputError where there is none.
std::shared_ptr<Device> make_cuda_device(int32_t index);

/// How many this process sees; 0 without a driver.
int32_t cuda_device_count();

}  // namespace distca
