// Llama as its context-independent pieces: tensor operations with autograd, on any device, in float32,
// float64 or bfloat16 (parameters and their gradients stay in float32 then). Core attention comes from
// outside, between pre_attention() and post_attention(), so that a schedule can run the layers of several
// nano-batches interleaved and send the attention wherever it likes:
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
//
// A part may be one rank's share of a tensor-parallel group of tp ranks, which hold the same rows and run the
// same calls: slices of heads, of the MLP's columns and of the vocabulary. Between layers rank t then holds
// rows [t · L, (t + 1) · L) of the tp · L (below: `x` is (L, hidden), the rows of `tokens`, `targets`,
// `rope`, q, k, v and o are all tp · L), and norms are held by every rank, their gradients being partial
// sums: the caller adds them up over the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/loss.h"
#include "model/rope.h"
#include "model/tensor_group.h"

namespace distca {

/// What a part's tensor is of the whole model's: all of it (dim < 0), or slice `index` of `count` equal ones
/// along `dim`.
struct Sharding {
  int32_t dim = -1, index = 0, count = 1;

  /// Held alike by every rank of a tensor-parallel group.
  bool replicated() const { return dim < 0; }
  std::vector<int64_t> whole_shape(at::IntArrayRef shape) const;
  /// This slice of the whole tensor, a view.
  at::Tensor slice_of(const at::Tensor& whole) const;

  friend bool operator==(const Sharding&, const Sharding&) = default;
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  Sharding sharding = {};
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // of what the part holds
  Sharding sharding = {};
};

/// Which part of the model a rank holds: layers [layer_begin, layer_end) and the ends, as a pipeline stage,
/// and of these slice tp_rank of tp_size.
struct LlamaPart {
  int64_t layer_begin = 0, layer_end = 0;
  bool embedding = true, head = true;
  int32_t tp_rank = 0, tp_size = 1;

  static LlamaPart whole(const LlamaConfig& config) { return {0, config.num_hidden_layers, true, true}; }
};

/// Throws InputError that names the first of heads, key/value heads, intermediate size and vocabulary that
/// can't be split evenly over `tp_size` ranks.
void check_tensor_parallel(const LlamaConfig& config, int32_t tp_size);

/// Weights are [out, in], as Hugging Face stores them. Shapes are the whole model's; of those of the first
/// row and of gate and up a tensor-parallel rank holds a slice of rows, of o_proj and down_proj one of
/// columns.
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
  at::ScalarType dtype = at::kFloat;  // of activations
  TensorGroup* group = nullptr;       // needed where part.tp_size > 1, with part.tp_rank as its rank
  /// (vocab, hidden), a slice of rows. Held by the embedding's part and, when tied, by the head's: where
  /// these are two, each has a partial sum of its gradient, and the caller adds both.
  at::Tensor embed_tokens;
  std::vector<LlamaLayer> layers;
  at::Tensor norm;     // (hidden), with the head
  at::Tensor lm_head;  // (vocab, hidden), a slice of rows; with a head that isn't tied

  /// The tensors of this part under their Hugging Face names, in the model's order, each once. They share
  /// memory with the fields above.
  std::vector<NamedTensor> named() const;
};

/// Names and shapes of what a part holds, in the order of LlamaParameters::named().
std::vector<TensorSpec> llama_tensors(const LlamaConfig& config, const LlamaPart& part);

/// A part with every weight 0, ready to be initialised or loaded, requiring gradients. The type in `options`
/// is that of activations; parameters have it too, unless it is shorter than float32: then they are float32.
LlamaParameters make_llama(const LlamaConfig& config, const LlamaPart& part,
                           const at::TensorOptions& options);

/// The same weights in the same memory, each a leaf of its own: what backward finds for them is apart from
/// what it finds for others at work on the model.
LlamaParameters with_own_leaves(const LlamaParameters& model);

/// Fills all weights: normal with config.initializer_range, norms 1. A tensor's values follow from its name
/// and the seed alone: not from the part (slices are those of the whole tensor), the number of ranks or the
/// device; dtypes differ by their rounding only.
void initialize(LlamaParameters& model, uint64_t seed);

/// `tokens` int64 (rows), each in [0, vocab) → (rows, hidden) in model.dtype; (L, hidden) of tp · L.
at::Tensor embed(const LlamaParameters& model, const at::Tensor& tokens);

/// q is (rows, heads, head_dim), k and v (rows, kv_heads, head_dim); contiguous, rotary applied. The numbers
/// of heads are those of the weights held here.
struct Qkv {
  at::Tensor q, k, v;
};

/// Norm → QKV → rotary. `layer` counts from the whole model's first, here and below.
Qkv pre_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x, const Rope& rope);

/// Output projection → residual → norm → SwiGLU MLP → residual. `x` is what pre_attention() got, `o` (rows,
/// heads, head_dim).
at::Tensor post_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x,
                          const at::Tensor& o);

/// Final norm and head: (rows, vocab), the columns of the vocabulary's slice.
at::Tensor logits(const LlamaParameters& model, const at::Tensor& x);

/// Final norm, head and the sum of cross-entropies over all rows whose target is >= 0, equal on every
/// tensor-parallel rank: see linear_cross_entropy().
at::Tensor loss_sum(const LlamaParameters& model, const at::Tensor& x, const at::Tensor& targets,
                    int64_t logits_at_once = kLogitsAtOnce);

}  // namespace distca
