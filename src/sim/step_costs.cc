#include "sim/step_costs.h"

#include "base/check.h"
#include "plan/task.h"

namespace distca {

double attention_work(int64_t rows, double keys, double startup_keys) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return static_cast<double>(tiles * kTileRows) * (keys + startup_keys);
}

double attention_work(int64_t begin, int64_t end, double startup_keys) {
  return attention_work(end - begin, static_cast<double>(begin + end + 1) / 2, startup_keys);
}

StepCosts step_costs(const ModelShape& model, const DeviceProfile& profile, int64_t tp, int64_t pp,
                     Recompute recompute) {
  DISTCA_CHECK_INPUT(tp >= 1 && model.heads % tp == 0,
                     "{} has {} heads: a tensor-parallel degree of {} doesn't divide them", model.name,
                     model.heads, tp);
  const auto degree = static_cast<double>(tp);
  StepCosts costs;
  const double weights = static_cast<double>(model.layer_parameters()) / degree;
  costs.linear_forward = 2 * weights / (profile.fit.linear_efficiency * profile.peak_flops);
  const int again = recompute == Recompute::kSelective;
  costs.linear_backward = (profile.linear_backward + again) * costs.linear_forward;
  const auto element = static_cast<double>(profile.element_bytes);
  const double token_bytes = element * static_cast<double>(model.hidden);
  costs.tp_forward = 4 * token_bytes * (degree - 1) / degree / profile.intra.bytes_per_second;
  costs.tp_backward = (1 + again) * costs.tp_forward;
  const double flops = 4 * static_cast<double>(model.head_dim) * static_cast<double>(model.heads) / degree;
  costs.attention_forward = flops / profile.fit.attention_flops;
  costs.attention_backward = profile.backward_factor * costs.attention_forward;
  const double kv_bytes = element * static_cast<double>(2 * model.kv_heads_of_device(tp) * model.head_dim);
  costs.gather_forward = kv_bytes / profile.fit.gather_bytes_per_second;
  costs.gather_backward = costs.gather_forward;
  costs.update = static_cast<double>(model.parameters()) / static_cast<double>(tp * pp) *
                 profile.fit.update_seconds_per_parameter;
  return costs;
}

}  // namespace distca
