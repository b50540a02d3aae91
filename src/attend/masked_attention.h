// For tests: attention of packed sequences by plain tensor operations under one mask over all rows, on any
// device and in any type. It reads the sequences where flash attention does, from cu_seqlens on the device,
// and tells flash attention's kernel apart from the rest of its call: with this one inside, all of it runs
// where there is no GPU.
#pragma once

#include <memory>

#include "attend/flash_kernel.h"

namespace distca::testing {

std::unique_ptr<PackedAttention> make_masked_attention();

/// From now on there is an attention kernel of that name, which packs rows and calls the one above.
void register_masked_kernel(const char* name, at::DeviceType device);

}  // namespace distca::testing
