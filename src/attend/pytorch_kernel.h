// PyTorch's own CPU attention behind the kernel interface, task by task: a baseline and a fallback.
#pragma once

#include <memory>

#include "attend/attention_kernel.h"

namespace distca {

/// "pytorch" on CPUs: float32, float64 or bfloat16, no sliding window. Uses PyTorch's own threads.
std::unique_ptr<AttentionKernel> make_pytorch_kernel(int threads);

}  // namespace distca
