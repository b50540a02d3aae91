// What a layer's context-independent part costs on this machine, measured.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/config.h"

namespace distca {

/// Seconds of one layer without its core attention: of one thread in float32, or of a CUDA device in
/// bfloat16.
struct LayerTimes {
  std::vector<int64_t> tokens;
  std::vector<double> forward_s, backward_s;
};

/// Measures ever more tokens, doubling from 128 to at most `most_tokens`, and stops when the next size would
/// not fit into `budget_s` seconds. At least one size is measured.
LayerTimes time_layer(const LlamaConfig& config, int64_t most_tokens, double budget_s,
                      const std::function<void(double)>& progress, at::Device device = at::kCPU);

}  // namespace distca
