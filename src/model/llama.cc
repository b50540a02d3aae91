#include "model/llama.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "model/parallel_linear.h"

namespace distca {
namespace {

constexpr int32_t kReplicated = -1, kRows = 0, kColumns = 1;

/// Calls visit(name, tensor, whole shape, dimension along which it is split) for each tensor that the model's
/// part holds, in order.
template <typename Model, typename Visit>
void visit_tensors(Model& model, const Visit& visit) {
  using Shape = std::vector<int64_t>;
  const LlamaConfig& config = model.config;
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const bool tied = config.tie_word_embeddings;
  if (model.part.embedding || (model.part.head && tied)) {
    visit("model.embed_tokens.weight", model.embed_tokens, Shape{config.vocab_size, hidden}, kRows);
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    auto& layer = model.layers[i];
    const std::string prefix =
        "model.layers." + std::to_string(model.part.layer_begin + static_cast<int64_t>(i)) + ".";
    visit(prefix + "input_layernorm.weight", layer.input_norm, Shape{hidden}, kReplicated);
    visit(prefix + "self_attn.q_proj.weight", layer.q_proj, Shape{q_width, hidden}, kRows);
    visit(prefix + "self_attn.k_proj.weight", layer.k_proj, Shape{kv_width, hidden}, kRows);
    visit(prefix + "self_attn.v_proj.weight", layer.v_proj, Shape{kv_width, hidden}, kRows);
    visit(prefix + "self_attn.o_proj.weight", layer.o_proj, Shape{hidden, q_width}, kColumns);
    visit(prefix + "post_attention_layernorm.weight", layer.post_norm, Shape{hidden}, kReplicated);
    visit(prefix + "mlp.gate_proj.weight", layer.gate_proj, Shape{intermediate, hidden}, kRows);
    visit(prefix + "mlp.up_proj.weight", layer.up_proj, Shape{intermediate, hidden}, kRows);
    visit(prefix + "mlp.down_proj.weight", layer.down_proj, Shape{hidden, intermediate}, kColumns);
  }
  if (!model.part.head) return;
  visit("model.norm.weight", model.norm, Shape{hidden}, kReplicated);
  if (!tied) visit("lm_head.weight", model.lm_head, Shape{config.vocab_size, hidden}, kRows);
}

/// Calls visit(tensor, spec) for each of them.
template <typename Model, typename Visit>
void visit_shards(Model& model, const Visit& visit) {
  const LlamaPart& part = model.part;
  visit_tensors(model, [&](const std::string& name, auto& tensor, std::vector<int64_t> shape, int32_t dim) {
    TensorSpec spec{name, std::move(shape), {}};
    if (dim >= 0) {
      spec.sharding = {dim, part.tp_rank, part.tp_size};
      spec.shape[static_cast<size_t>(dim)] /= part.tp_size;
    }
    visit(tensor, spec);
  });
}

LlamaParameters without_tensors(const LlamaConfig& config, const LlamaPart& part) {
  DISTCA_CHECK(0 <= part.layer_begin && part.layer_begin <= part.layer_end &&
                   part.layer_end <= config.num_hidden_layers,
               "layers [{}, {}) of a model that has {}", part.layer_begin, part.layer_end,
               config.num_hidden_layers);
  DISTCA_CHECK(0 <= part.tp_rank && part.tp_rank < part.tp_size, "slice {} of {}", part.tp_rank,
               part.tp_size);
  check_tensor_parallel(config, part.tp_size);
  LlamaParameters model;
  model.config = config;
  model.part = part;
  model.layers.resize(static_cast<size_t>(part.layer_end - part.layer_begin));
  return model;
}

/// A generator seed that is spread over 64 bits by the seed and the name (FNV-1a, then splitmix64's
/// finaliser).
uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 14695981039346656037ULL ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

const LlamaLayer& layer_of(const LlamaParameters& model, int64_t layer) {
  DISTCA_CHECK(model.part.layer_begin <= layer && layer < model.part.layer_end,
               "layer {} is not among those held, [{}, {})", layer, model.part.layer_begin,
               model.part.layer_end);
  return model.layers[static_cast<size_t>(layer - model.part.layer_begin)];
}

/// In the weight's type, which is float32 where activations are bfloat16; rounded once.
at::Tensor norm(const LlamaParameters& model, const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.to(weight.scalar_type());
  return at::rms_norm(wide, {x.size(-1)}, weight, model.config.rms_norm_eps).to(x.scalar_type());
}

/// The group that runs the part's collectives; null where the part isn't split.
TensorGroup* group_of(const LlamaParameters& model) {
  if (model.part.tp_size == 1) return nullptr;
  DISTCA_CHECK(model.group != nullptr && model.group->size() == model.part.tp_size &&
                   model.group->rank() == model.part.tp_rank,
               "slice {} of {} needs a tensor-parallel group of that size and rank", model.part.tp_rank,
               model.part.tp_size);
  return model.group;
}

std::string name_of(int64_t layer, const char* what) {
  return "layer " + std::to_string(layer) + what;
}

const at::Tensor& head_weight(const LlamaParameters& model) {
  DISTCA_CHECK(model.part.head, "layers [{}, {}) hold no head", model.part.layer_begin, model.part.layer_end);
  return model.config.tie_word_embeddings ? model.embed_tokens : model.lm_head;
}

}  // namespace

std::vector<int64_t> Sharding::whole_shape(at::IntArrayRef shape) const {
  std::vector<int64_t> whole = shape.vec();
  if (dim >= 0) whole[static_cast<size_t>(dim)] *= count;
  return whole;
}

at::Tensor Sharding::slice_of(const at::Tensor& whole) const {
  if (dim < 0) return whole;
  const int64_t size = whole.size(dim) / count;
  return whole.narrow(dim, index * size, size);
}

void check_tensor_parallel(const LlamaConfig& config, int32_t tp_size) {
  DISTCA_CHECK_INPUT(tp_size >= 1, "parallel.tp is {}, not at least 1", tp_size);
  const auto check = [&](const char* name, int64_t value) {
    DISTCA_CHECK_INPUT(value % tp_size == 0,
                       "the model's {} = {} can't be split evenly over parallel.tp = {} ranks", name, value,
                       tp_size);
  };
  check("num_attention_heads", config.num_attention_heads);
  check("num_key_value_heads", config.num_key_value_heads);
  check("intermediate_size", config.intermediate_size);
  check("vocab_size", config.vocab_size);
}

std::vector<NamedTensor> LlamaParameters::named() const {
  std::vector<NamedTensor> tensors;
  visit_shards(*this, [&](const at::Tensor& tensor, const TensorSpec& spec) {
    tensors.push_back({spec.name, tensor, spec.sharding});
  });
  return tensors;
}

std::vector<TensorSpec> llama_tensors(const LlamaConfig& config, const LlamaPart& part) {
  const LlamaParameters model = without_tensors(config, part);
  std::vector<TensorSpec> specs;
  visit_shards(model, [&](const at::Tensor&, const TensorSpec& spec) { specs.push_back(spec); });
  return specs;
}

LlamaParameters make_llama(const LlamaConfig& config, const LlamaPart& part,
                           const at::TensorOptions& options) {
  config.check("model configuration");
  LlamaParameters model = without_tensors(config, part);
  model.dtype = c10::typeMetaToScalarType(options.dtype());
  const at::TensorOptions stored = options.dtype(model.dtype == at::kDouble ? at::kDouble : at::kFloat);
  visit_shards(model, [&](at::Tensor& tensor, const TensorSpec& spec) {
    tensor = at::zeros(spec.shape, stored).requires_grad_();
  });
  return model;
}

LlamaParameters with_own_leaves(const LlamaParameters& model) {
  LlamaParameters out = model;
  visit_shards(out, [](at::Tensor& tensor, const TensorSpec&) {
    tensor = tensor.detach().requires_grad_(tensor.requires_grad());
  });
  return out;
}

void initialize(LlamaParameters& model, uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor, sharding] : model.named()) {
    if (tensor.dim() == 1) {
      tensor.fill_(1);
      continue;
    }
    at::Generator generator = at::detail::createCPUGenerator(seed_of(seed, name));
    const at::Tensor values = at::empty(sharding.whole_shape(tensor.sizes()), at::kDouble);
    tensor.copy_(sharding.slice_of(values.normal_(0, model.config.initializer_range, generator)));
  }
}

at::Tensor embed(const LlamaParameters& model, const at::Tensor& tokens) {
  DISTCA_CHECK(model.part.embedding, "layers [{}, {}) hold no embedding", model.part.layer_begin,
               model.part.layer_end);
  TensorGroup* const group = group_of(model);
  if (group == nullptr) return at::embedding(model.embed_tokens, tokens).to(model.dtype);
  const int64_t size = model.embed_tokens.size(0);
  const at::Tensor local = tokens - size * group->rank();
  const at::Tensor elsewhere = local.lt(0).logical_or(local.ge(size));
  const at::Tensor found = at::embedding(model.embed_tokens, local.masked_fill(elsewhere, 0)).to(model.dtype);
  return scatter_rows(group, found.masked_fill(elsewhere.unsqueeze(1), 0), "embedding");
}

Qkv pre_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x, const Rope& rope) {
  const LlamaLayer& weights = layer_of(model, layer);
  const at::Tensor normed = norm(model, x, weights.input_norm);
  std::vector<at::Tensor> qkv =
      gathered_linear(group_of(model), normed, {weights.q_proj, weights.k_proj, weights.v_proj},
                      name_of(layer, ", rows for q, k, v"));
  for (at::Tensor& each : qkv) {
    const int64_t head_dim = model.config.head_dim;
    each = each.view({each.size(0), each.size(1) / head_dim, head_dim});
  }
  return {apply_rope(qkv[0], rope), apply_rope(qkv[1], rope), qkv[2]};
}

at::Tensor post_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x,
                          const at::Tensor& o) {
  const LlamaLayer& weights = layer_of(model, layer);
  TensorGroup* const group = group_of(model);
  const at::Tensor attended =
      x + linear_scattered(group, o.flatten(1), weights.o_proj, name_of(layer, ", sum of attention"));
  const at::Tensor normed = norm(model, attended, weights.post_norm);
  const std::vector<at::Tensor> up = gathered_linear(group, normed, {weights.gate_proj, weights.up_proj},
                                                     name_of(layer, ", rows for the MLP"));
  return attended + linear_scattered(group, at::silu(up[0]) * up[1], weights.down_proj,
                                     name_of(layer, ", sum of the MLP"));
}

at::Tensor logits(const LlamaParameters& model, const at::Tensor& x) {
  const at::Tensor& weight = head_weight(model);
  return gathered_linear(group_of(model), norm(model, x, model.norm), {weight}, "rows for the head")[0];
}

at::Tensor loss_sum(const LlamaParameters& model, const at::Tensor& x, const at::Tensor& targets,
                    int64_t logits_at_once) {
  const at::Tensor& weight = head_weight(model);
  return linear_cross_entropy(group_of(model), norm(model, x, model.norm), weight, targets, logits_at_once);
}

}  // namespace distca
