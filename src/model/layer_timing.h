// What a layer's context-independent part costs on this machine, measured.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/config.h"

namespace distca {

/// CPU seconds of one layer without its core attention, float32, one thread.
struct LayerTimes {
  std::vector<int64_t> tokens;
  std::vector<double> forward_s, backward_s;
};

/// Measures ever more tokens, doubling from 128 to at most `most_tokens`, and stops when the next size would
/// not fit into `budget_s` seconds. At least one size is measured.
LayerTimes time_layer(const LlamaConfig& config, int64_t most_tokens, double budget_s,
                      const std::function<void(double)>& progress);

}  // namespace distca
