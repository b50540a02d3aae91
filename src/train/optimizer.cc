#include "train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "comm/reduce.h"

namespace distca {

std::vector<int64_t> optimizer_slices(const FlatParameters& parameters, int64_t slices) {
  constexpr int64_t kRun = 64;
  const int64_t elements = parameters.values.numel(), decayed = parameters.decayed;
  std::vector<int64_t> places;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t place = slice_begin(elements, slices, slice);
    // The elements that decay and those that don't are updated apart.
    const int64_t base = place < decayed ? 0 : decayed;
    places.push_back(base + (place - base) / kRun * kRun);
  }
  places.push_back(elements);
  return places;
}

AdamState make_adam_state(const FlatParameters& parameters, int64_t slices, int64_t slice) {
  const std::vector<int64_t> places = optimizer_slices(parameters, slices);
  AdamState state;
  state.begin = places[slice];
  state.end = places[slice + 1];
  state.exp_avg = at::zeros({state.end - state.begin}, parameters.values.options());
  state.exp_avg_sq = at::zeros_like(state.exp_avg);
  return state;
}

void exchange_slices(Fabric& fabric, const at::Tensor& buffer, const std::vector<int64_t>& slices,
                     const std::string& name) {
  const auto bytes = static_cast<int64_t>(buffer.element_size());
  const auto slice = [&](int32_t peer, int32_t of) {
    return PeerBytes{peer, slices[of] * bytes, (slices[of + 1] - slices[of]) * bytes};
  };
  ExchangePart part{buffer.data_ptr(), buffer.data_ptr(), {}, {}};
  for (int32_t peer = 0; peer < fabric.world_size(); ++peer) {
    if (peer == fabric.rank()) continue;
    if (slice(peer, fabric.rank()).bytes > 0) part.sends.push_back(slice(peer, fabric.rank()));
    if (slice(peer, peer).bytes > 0) part.receives.push_back(slice(peer, peer));
  }
  fabric.all_to_all({part}, name)->wait();
}

double learning_rate(const Config::Train& config, int64_t step) {
  if (step < config.warmup)
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  const int64_t last = std::max<int64_t>(1, config.steps - 1 - config.warmup);
  const double done = std::min(1.0, static_cast<double>(step - config.warmup) / static_cast<double>(last));
  return config.min_lr + (config.lr - config.min_lr) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

std::vector<double> gradient_norms(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return {};
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients)
    norms.push_back(at::linalg_vector_norm(gradient, 2, c10::nullopt, false, at::kDouble));
  const at::Tensor together = at::stack(norms).cpu();
  const double* first = together.const_data_ptr<double>();
  return {first, first + norms.size()};
}

double gradient_norm(const at::Tensor& gradients) {
  return gradient_norms({gradients})[0];
}

void clip_gradients(FlatParameters& parameters, double norm, double clip) {
  if (clip > 0 && norm > clip) parameters.gradients.mul_(clip / norm);
}

void adam_update(FlatParameters& parameters, AdamState& state, const Config::Train& config, double lr) {
  const at::NoGradGuard no_grad;
  ++state.updates;
  const at::Tensor updates =
      at::full({}, static_cast<double>(state.updates), parameters.values.options().dtype(at::kFloat));
  const auto update = [&](int64_t first, int64_t last, double weight_decay) {
    const int64_t begin = std::max(first, state.begin), end = std::min(last, state.end);
    if (begin >= end) return;
    const auto part = [&](const at::Tensor& buffer, int64_t from = 0) {
      return std::vector<at::Tensor>{buffer.narrow(0, begin - from, end - begin)};
    };
    at::_fused_adamw_(part(parameters.values), part(parameters.gradients), part(state.exp_avg, state.begin),
                      part(state.exp_avg_sq, state.begin), {}, std::vector<at::Tensor>{updates}, lr,
                      config.beta1, config.beta2, weight_decay, config.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  };
  update(0, parameters.decayed, config.weight_decay);
  update(parameters.decayed, parameters.values.numel(), 0);
}

}  // namespace distca
