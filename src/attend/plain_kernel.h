// Core attention in plain tensor operations: on any device, in any floating-point type, task by task, with
// all scores of a task in memory. What flash attention can't take (float32 and float64 on a GPU) runs so, and
// what checks a device's schedule.
#pragma once

#include <memory>

#include "attend/attention_kernel.h"

namespace distca {

std::unique_ptr<AttentionKernel> make_plain_kernel(int threads);

}  // namespace distca
