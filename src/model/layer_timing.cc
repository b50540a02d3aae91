#include "model/layer_timing.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "attend/device.h"
#include "attend/packed_tasks.h"
#include "base/clock.h"
#include "model/llama.h"

namespace distca {
namespace {

struct Seconds {
  double forward = 0, backward = 0;
};

Seconds time_once(const LlamaParameters& model, int64_t tokens, const at::TensorOptions& options) {
  const LlamaConfig& config = model.config;
  const Rope rope = make_rope(config, at::arange(tokens, options.dtype(at::kLong)), model.dtype);
  at::Tensor x = at::randn({tokens, config.hidden_size}, options).requires_grad_();
  at::Tensor o = at::randn({tokens, config.num_attention_heads, config.head_dim}, options).requires_grad_();
  DeviceTimer timer(options.device());
  timer.start();
  const Qkv qkv = pre_attention(model, 0, x, rope);
  const at::Tensor out = post_attention(model, 0, x, o);
  const double forward = timer.stop();
  timer.start();
  const at::Tensor all =
      at::cat({qkv.q.reshape({-1}), qkv.k.reshape({-1}), qkv.v.reshape({-1}), out.reshape({-1})});
  all.backward(at::ones_like(all));
  return {forward, timer.stop()};
}

double middle_of_three(double a, double b, double c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

}  // namespace

LayerTimes time_layer(const LlamaConfig& config, int64_t most_tokens, double budget_s,
                      const std::function<void(double)>& progress, at::Device device) {
  at::set_num_threads(1);
  LlamaConfig one_layer = config;
  one_layer.num_hidden_layers = 1;
  const auto options = at::TensorOptions().dtype(measured_type(device)).device(device);
  LlamaParameters model = make_llama(one_layer, {0, 1, false, false}, options);
  initialize(model, 1);
  LayerTimes times;
  double spent = 0, last = 0;
  for (int64_t tokens = 128; tokens <= most_tokens; tokens *= 2) {
    if (!times.tokens.empty() && spent + 2.2 * last > budget_s) break;
    const double begin = wall_seconds();
    if (times.tokens.empty())
      time_once(model, tokens, options);  // first touch of all weights and their gradients
    const Seconds a = time_once(model, tokens, options), b = time_once(model, tokens, options),
                  c = time_once(model, tokens, options);
    times.tokens.push_back(tokens);
    times.forward_s.push_back(middle_of_three(a.forward, b.forward, c.forward));
    times.backward_s.push_back(middle_of_three(a.backward, b.backward, c.backward));
    last = wall_seconds() - begin;
    spent += last;
    progress(std::min(1.0, spent / budget_s));
  }
  progress(1);
  return times;
}

}  // namespace distca
