// The sizes of a Llama model that decide time and memory, as plain numbers: simulation knows no tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace distca {

struct ModelShape {
  std::string name;
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0, vocab = 0;
  bool tied_embeddings = false;

  /// Weights of a layer's matrices: query, key, value, output and the gated MLP's three.
  int64_t layer_parameters() const {
    return hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * mlp;
  }
  /// Embeddings and output head.
  int64_t vocabulary_parameters() const { return (tied_embeddings ? 1 : 2) * vocab * hidden; }
  int64_t parameters() const { return layers * layer_parameters() + vocabulary_parameters(); }

  /// Key/value heads that one of `tp` devices holds: they are repeated where there are more devices.
  int64_t kv_heads_of_device(int64_t tp) const { return std::max<int64_t>(1, kv_heads / tp); }
};

}  // namespace distca
