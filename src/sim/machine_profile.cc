#include "sim/machine_profile.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace distca {
namespace {

struct AttentionFit {
  double of_pair = 0, of_row = 0;  // seconds
  double sum = 0;                  // of the whole grid
};

/// Least squares of seconds = of_pair · pairs + of_row · rows, each point's error relative and counting by
/// its time.
AttentionFit fit_attention(const AttentionTimes& times) {
  double xx = 0, xy = 0, yy = 0, xt = 0, yt = 0;
  AttentionFit fit;
  for (size_t i = 0; i < times.q.size(); ++i) {
    for (size_t j = 0; j < times.kv.size(); ++j) {
      const auto rows = static_cast<double>(times.q[i]), keys = static_cast<double>(times.kv[j]);
      if (keys < rows) continue;  // rows that see no key
      const double seconds = times.seconds[i][j], x = rows * (keys - (rows - 1) / 2), y = rows;
      xx += x * x / seconds, xy += x * y / seconds, yy += y * y / seconds;
      xt += x, yt += y;
      fit.sum += seconds;
    }
  }
  const double determinant = xx * yy - xy * xy;
  fit.of_pair = determinant > 0 ? (xt * yy - yt * xy) / determinant : xt / xx;
  fit.of_row = determinant > 0 ? (yt * xx - xt * xy) / determinant : 0;
  if (fit.of_row < 0 || fit.of_pair <= 0) fit.of_row = 0, fit.of_pair = xt / xx;
  return fit;
}

}  // namespace

DeviceProfile machine_profile(const Profile& measured, const ModelShape& model, int64_t measured_weights,
                              int64_t rows) {
  const LinearTimes& linear = measured.linear();
  DISTCA_CHECK_INPUT(!linear.tokens.empty(), "profile '{}' has no times of layers", measured.name());
  DISTCA_CHECK_INPUT(measured.links().inter.bytes_per_s > 0,
                     "profile '{}' has no links: add those of the cluster to its file", measured.name());
  const LayerHeads heads{model.heads, model.kv_heads, model.head_dim, 4};
  const AttentionFit forward = fit_attention(measured.attention(heads, "forward"));
  const AttentionFit backward = fit_attention(measured.attention(heads, "backward"));
  DeviceProfile profile;
  profile.name = measured.name();
  profile.source = "measured by distca profile";
  profile.element_bytes = 4;
  profile.memory_bytes = std::numeric_limits<double>::max();
  profile.backward_factor = backward.sum / forward.sum;
  profile.fit.attention_flops =
      4 * static_cast<double>(model.head_dim) * static_cast<double>(model.heads) / forward.of_pair;
  profile.fit.attention_startup_keys = forward.of_row / forward.of_pair;

  const double chunk = seconds_at(linear.tokens, linear.forward_s, rows);
  const double of_weight = chunk / static_cast<double>(rows) / static_cast<double>(measured_weights);
  const double head = static_cast<double>(model.vocab * model.hidden) / static_cast<double>(model.layers);
  const double layer = static_cast<double>(model.layer_parameters());
  const double linear_flops = 2 / of_weight / (1 + head / layer);
  profile.peak_flops = std::max(linear_flops, profile.fit.attention_flops);
  profile.fit.linear_efficiency = linear_flops / profile.peak_flops;
  profile.linear_backward = seconds_at(linear.tokens, linear.backward_s, rows) / chunk;
  const auto link = [](const LinkTimes& times) { return NetworkLink{times.latency_s, times.bytes_per_s}; };
  profile.intra = link(measured.links().intra), profile.inter = link(measured.links().inter);
  profile.fit.gather_bytes_per_second = profile.inter.bytes_per_second;
  profile.fit_note = "fitted to the grids of the measured profile";
  return profile;
}

}  // namespace distca
