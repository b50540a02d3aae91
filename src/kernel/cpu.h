// Core attention on CPUs, blocked for caches. Float32 is the fast one; float64 serves exact runs.
#pragma once

#include "base/thread_pool.h"
#include "kernel/attention.h"

namespace distca {

/// T is float, double or BFloat16. Runs on the pool's threads, which don't change any bit of the result.
template <typename T>
void cpu_attention_forward(const AttentionForward<T>& args, ThreadPool& pool);

template <typename T>
void cpu_attention_backward(const AttentionBackward<T>& args, ThreadPool& pool);

}  // namespace distca
