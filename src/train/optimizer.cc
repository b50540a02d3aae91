#include "train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace distca {

AdamState make_adam_state(const FlatParameters& parameters) {
  return {at::zeros_like(parameters.values), at::zeros_like(parameters.values), 0};
}

double learning_rate(const Config::Train& config, int64_t step) {
  if (step < config.warmup)
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  const int64_t last = std::max<int64_t>(1, config.steps - 1 - config.warmup);
  const double done = std::min(1.0, static_cast<double>(step - config.warmup) / static_cast<double>(last));
  return config.min_lr + (config.lr - config.min_lr) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

double gradient_norm(const at::Tensor& gradients) {
  return at::linalg_vector_norm(gradients, 2, c10::nullopt, false, at::kDouble).item<double>();
}

void clip_gradients(FlatParameters& parameters, double norm, double clip) {
  if (clip > 0 && norm > clip) parameters.gradients.mul_(clip / norm);
}

void adam_update(FlatParameters& parameters, AdamState& state, const Config::Train& config, double lr) {
  const at::NoGradGuard no_grad;
  ++state.updates;
  const at::Tensor updates = at::full({}, static_cast<double>(state.updates), at::kFloat);
  const auto update = [&](int64_t begin, int64_t end, double weight_decay) {
    const auto part = [&](const at::Tensor& buffer) {
      return std::vector<at::Tensor>{buffer.narrow(0, begin, end - begin)};
    };
    at::_fused_adamw_(part(parameters.values), part(parameters.gradients), part(state.exp_avg),
                      part(state.exp_avg_sq), {}, std::vector<at::Tensor>{updates}, lr, config.beta1,
                      config.beta2, weight_decay, config.eps, /*amsgrad=*/false, /*maximize=*/false);
  };
  update(0, parameters.decayed, config.weight_decay);
  update(parameters.decayed, parameters.values.numel(), 0);
}

}  // namespace distca
