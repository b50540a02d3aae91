#include "model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace distca {
namespace {

/// Llama 3's scaling of one frequency: kept for short wavelengths, divided by the factor for long ones,
/// between them interpolated by how often the wave fits into the original context.
double scaled(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double waves = static_cast<double>(scaling.original_max_position_embeddings) / wavelength;
  if (waves > scaling.high_freq_factor) return frequency;
  if (waves < scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const LlamaConfig& config) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(config.head_dim);
    const double frequency = std::pow(config.rope_theta, -exponent);
    frequencies.push_back(config.rope_scaling ? scaled(frequency, *config.rope_scaling) : frequency);
  }
  return frequencies;
}

Rope make_rope(const LlamaConfig& config, const at::Tensor& positions, at::ScalarType dtype) {
  DISTCA_CHECK(positions.dim() == 1 && positions.scalar_type() == at::kLong,
               "positions are {} with {} dimensions, not int64 with one",
               at::toString(positions.scalar_type()), positions.dim());
  const at::Tensor frequencies = at::tensor(rope_frequencies(config), at::kDouble).to(positions.device());
  const at::Tensor angles = positions.to(at::kDouble).view({-1, 1, 1}) * frequencies;
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

at::Tensor apply_rope(const at::Tensor& x, const Rope& rope) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  return at::cat({low * rope.cos - high * rope.sin, high * rope.cos + low * rope.sin}, -1);
}

}  // namespace distca
