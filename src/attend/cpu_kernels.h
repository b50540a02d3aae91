// The kernels of kernel/ as tensors see them.
#pragma once

#include <memory>

#include "attend/attention_kernel.h"

namespace distca {

/// "cpu": float32, float64 and bfloat16, on `threads` threads.
std::unique_ptr<AttentionKernel> make_cpu_kernel(int threads);

/// "reference": the slow, obvious one; `threads` is not used.
std::unique_ptr<AttentionKernel> make_reference_kernel(int threads);

}  // namespace distca
