#include "model/llama.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"

namespace distca {
namespace {

/// Calls visit(name, tensor, shape) for each tensor that the model's part holds, in order.
template <typename Model, typename Visit>
void visit_tensors(Model& model, const Visit& visit) {
  using Shape = std::vector<int64_t>;
  const LlamaConfig& config = model.config;
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const bool tied = config.tie_word_embeddings;
  if (model.part.embedding || (model.part.head && tied)) {
    visit("model.embed_tokens.weight", model.embed_tokens, Shape{config.vocab_size, hidden});
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    auto& layer = model.layers[i];
    const std::string prefix =
        "model.layers." + std::to_string(model.part.layer_begin + static_cast<int64_t>(i)) + ".";
    visit(prefix + "input_layernorm.weight", layer.input_norm, Shape{hidden});
    visit(prefix + "self_attn.q_proj.weight", layer.q_proj, Shape{q_width, hidden});
    visit(prefix + "self_attn.k_proj.weight", layer.k_proj, Shape{kv_width, hidden});
    visit(prefix + "self_attn.v_proj.weight", layer.v_proj, Shape{kv_width, hidden});
    visit(prefix + "self_attn.o_proj.weight", layer.o_proj, Shape{hidden, q_width});
    visit(prefix + "post_attention_layernorm.weight", layer.post_norm, Shape{hidden});
    visit(prefix + "mlp.gate_proj.weight", layer.gate_proj, Shape{intermediate, hidden});
    visit(prefix + "mlp.up_proj.weight", layer.up_proj, Shape{intermediate, hidden});
    visit(prefix + "mlp.down_proj.weight", layer.down_proj, Shape{hidden, intermediate});
  }
  if (!model.part.head) return;
  visit("model.norm.weight", model.norm, Shape{hidden});
  if (!tied) visit("lm_head.weight", model.lm_head, Shape{config.vocab_size, hidden});
}

LlamaParameters without_tensors(const LlamaConfig& config, const LlamaPart& part) {
  DISTCA_CHECK(0 <= part.layer_begin && part.layer_begin <= part.layer_end &&
                   part.layer_end <= config.num_hidden_layers,
               "layers [{}, {}) of a model that has {}", part.layer_begin, part.layer_end,
               config.num_hidden_layers);
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

at::Tensor norm(const LlamaParameters& model, const at::Tensor& x, const at::Tensor& weight) {
  return at::rms_norm(x, {x.size(-1)}, weight, model.config.rms_norm_eps);
}

const at::Tensor& head_weight(const LlamaParameters& model) {
  DISTCA_CHECK(model.part.head, "layers [{}, {}) hold no head", model.part.layer_begin, model.part.layer_end);
  return model.config.tie_word_embeddings ? model.embed_tokens : model.lm_head;
}

}  // namespace

std::vector<NamedTensor> LlamaParameters::named() const {
  std::vector<NamedTensor> tensors;
  visit_tensors(*this, [&](const std::string& name, const at::Tensor& tensor, const std::vector<int64_t>&) {
    tensors.push_back({name, tensor});
  });
  return tensors;
}

std::vector<TensorSpec> llama_tensors(const LlamaConfig& config, const LlamaPart& part) {
  const LlamaParameters model = without_tensors(config, part);
  std::vector<TensorSpec> specs;
  visit_tensors(model, [&](const std::string& name, const at::Tensor&, const std::vector<int64_t>& shape) {
    specs.push_back({name, shape});
  });
  return specs;
}

LlamaParameters make_llama(const LlamaConfig& config, const LlamaPart& part,
                           const at::TensorOptions& options) {
  config.check("model configuration");
  LlamaParameters model = without_tensors(config, part);
  visit_tensors(model, [&](const std::string&, at::Tensor& tensor, const std::vector<int64_t>& shape) {
    tensor = at::zeros(shape, options).requires_grad_();
  });
  return model;
}

void initialize(LlamaParameters& model, uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : model.named()) {
    if (tensor.dim() == 1) {
      tensor.fill_(1);
      continue;
    }
    at::Generator generator = at::detail::createCPUGenerator(seed_of(seed, name));
    const at::Tensor values = at::empty(tensor.sizes(), at::kDouble);
    tensor.copy_(values.normal_(0, model.config.initializer_range, generator));
  }
}

at::Tensor embed(const LlamaParameters& model, const at::Tensor& tokens) {
  DISTCA_CHECK(model.part.embedding, "layers [{}, {}) hold no embedding", model.part.layer_begin,
               model.part.layer_end);
  return at::embedding(model.embed_tokens, tokens);
}

Qkv pre_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x, const Rope& rope) {
  const LlamaLayer& weights = layer_of(model, layer);
  const at::Tensor normed = norm(model, x, weights.input_norm);
  const auto project = [&](const at::Tensor& weight) {
    const int64_t head_dim = model.config.head_dim;
    return at::linear(normed, weight).view({x.size(0), weight.size(0) / head_dim, head_dim});
  };
  return {apply_rope(project(weights.q_proj), rope), apply_rope(project(weights.k_proj), rope),
          project(weights.v_proj)};
}

at::Tensor post_attention(const LlamaParameters& model, int64_t layer, const at::Tensor& x,
                          const at::Tensor& o) {
  const LlamaLayer& weights = layer_of(model, layer);
  const at::Tensor attended = x + at::linear(o.flatten(1), weights.o_proj);
  const at::Tensor normed = norm(model, attended, weights.post_norm);
  const at::Tensor gated =
      at::silu(at::linear(normed, weights.gate_proj)) * at::linear(normed, weights.up_proj);
  return attended + at::linear(gated, weights.down_proj);
}

at::Tensor logits(const LlamaParameters& model, const at::Tensor& x) {
  const at::Tensor& weight = head_weight(model);
  return at::linear(norm(model, x, model.norm), weight);
}

at::Tensor loss_sum(const LlamaParameters& model, const at::Tensor& x, const at::Tensor& targets,
                    int64_t logits_at_once) {
  const at::Tensor& weight = head_weight(model);
  return linear_cross_entropy(norm(model, x, model.norm), weight, targets, logits_at_once);
}

}  // namespace distca
