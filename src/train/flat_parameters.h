// All parameters of a model in one buffer and all their gradients in another, so that ranks sum gradients in
// one operation, the optimizer updates in one, and a norm is one number. The model's tensors are views into
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/llama.h"

namespace distca {

/// Where a parameter lies in the buffers.
struct FlatEntry {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0, count = 0;
  Sharding sharding = {};  // over the tensor-parallel group
};

struct FlatParameters {
  LlamaParameters model;
  at::Tensor values, gradients;    // (elements), in the model's type
  std::vector<FlatEntry> entries;  // in the model's order
  int64_t decayed = 0;             // the first elements: those of matrices, which weight decay applies to

  /// A parameter's part of a buffer that is laid out as `values` is, in the parameter's shape.
  static at::Tensor view(const at::Tensor& buffer, const FlatEntry& entry);
};

/// Moves the parameters into one buffer. Backward adds to `gradients`, which begin as 0.
FlatParameters flatten(LlamaParameters model);

/// The embedding's name: with tied embeddings the pipeline's first and last stage both hold it.
inline constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace distca
