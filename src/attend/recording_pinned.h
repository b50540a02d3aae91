// Pinned memory of the recording device: what the host may hand over without waiting, as for a CUDA device.
#pragma once

#include <c10/core/Allocator.h>

namespace distca::testing {

c10::Allocator* pinned_allocator();

/// Whether that allocator made what the pointer points into.
bool is_pinned(const void* pointer);

}  // namespace distca::testing
