// PyTorch's own attention behind the kernel interface: its flash attention on GPUs, variable length, one call
// a mask kind; and its CPU kernel, task by task, as a baseline and a fallback.
#pragma once

#include <memory>

#include "attend/attention_kernel.h"

namespace distca {

/// "flash" on GPUs: bfloat16 or float16. head_dim up to 256; one that isn't a multiple of 8 is padded.
std::unique_ptr<AttentionKernel> make_flash_kernel(int threads);

/// "pytorch" on CPUs: float32, float64 or bfloat16, no sliding window. Uses PyTorch's own threads.
std::unique_ptr<AttentionKernel> make_pytorch_kernel(int threads);

}  // namespace distca
