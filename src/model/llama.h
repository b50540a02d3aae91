// Llama as its context-independent pieces: tensor operations with autograd, on any device, in float32,
// float64 or bfloat16. Core attention comes from outside, between pre_attention() and post_attention(), so
// that a schedule can run the layers of several nano-batches interleaved and send the attention wherever it
// likes:
//
//   Rope rope = make_rope(model.config, positions, dtype);
//   at::Tensor x = embed(model, tokens);
//   for (int64_t layer = 0; layer < layers; ++layer) {
//     Qkv qkv = pre_attention(model, layer, x, rope);
//     at::Tensor o = …;                                 // core attention over all documents
//     x = post_attention(model, layer, x, o);
//   }
//   loss_sum(model, x, targets).backward();
//
// Tensors of tokens are (rows, …), the rows of any documents in any order: only the positions in `rope` know
// where a row stands. Zero rows flow through, with zero gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/loss.h"
#include "model/rope.h"

namespace distca {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

/// Which part of the model a pipeline stage holds: layers [layer_begin, layer_end), and the ends.
struct LlamaPart {
  int64_t layer_begin = 0, layer_end = 0;
  bool embedding = true, head = true;

  static LlamaPart whole(const LlamaConfig& config) { return {0, config.num_hidden_layers, true, true}; }
};

/// Weights are [out, in], as Hugging Face stores them.
struct LlamaLayer {
  at::Tensor input_norm;  // (hidden)
  at::Tensor q_proj, k_proj, v_proj,
      o_proj;            // (heads · head_dim, hidden), kv_heads twice, (hidden, heads · head_dim)
  at::Tensor post_norm;  // (hidden)
  at::Tensor gate_proj, up_proj, down_proj;  // (intermediate, hidden) twice, (hidden, intermediate)
};

struct LlamaParameters {
  LlamaConfig config;
  LlamaPart part;
  at::Tensor embed_tokens;  // (vocab, hidden); held by the embedding's part and, when tied, by the head's
  std::vector<LlamaLayer> layers;
  at::Tensor norm;     // (hidden), with the head
  at::Tensor lm_head;  // (vocab, hidden), with a head that isn't tied

  /// The tensors of this part under their Hugging Face names, in the model's order, each once. They share
  /// memory with the fields above.
  std::vector<NamedTensor> named() const;
};

/// Names and shapes of what a part holds, in the order of LlamaParameters::named().
std::vector<TensorSpec> llama_tensors(const LlamaConfig& config, const LlamaPart& part);

/// A part with every weight 0, ready to be initialised or loaded, requiring gradients.
LlamaParameters make_llama(const LlamaConfig& config, const LlamaPart& part,
                           const at::TensorOptions& options);

/// Fills all weights: normal with config.initializer_range, norms 1. A tensor's values follow from its name
/// and the seed alone: not from the part, the number of ranks or the device; dtypes differ by their rounding
/// only.
void initialize(LlamaParameters& model, uint64_t seed);

/// `tokens` int64 (rows), each in [0, vocab) → (rows, hidden).
at::Tensor embed(const LlamaParameters& model, const at::Tensor& tokens);

/// q is (rows, heads, head_dim), k and v (rows, kv_heads, head_dim); contiguous, rotary applied. The numbers
/// of heads are those of the weights.
struct Qkv {
  at::Tensor q, k, v;
};

/// Norm → QKV → rotary. `layer` counts from the whole model's first, here and below.
Qkv pre_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x, const Rope& rope);

/// Output projection → residual → norm → SwiGLU MLP → residual. `x` is what pre_attention() got, `o` (rows,
/// heads, head_dim).
at::Tensor post_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x,
                          const at::Tensor& o);

/// Final norm and head: (rows, vocab).
at::Tensor logits(const LlamaParameters& model, const at::Tensor& x);

/// Final norm, head and the sum of cross-entropies over rows whose target is >= 0: see
/// linear_cross_entropy().
at::Tensor loss_sum(const LlamaParameters& model, const at::Tensor& x, const at::Tensor& targets,
                    int64_t logits_at_once = kLogitsAtOnce);

}  // namespace distca
