#include "kernel/peak.h"

#include "base/clock.h"
#include "kernel/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/peak.cc"
// clang-format off
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

double measure_rate() {
  const hn::ScalableTag<float> d;
  constexpr int kSums = 10;
  constexpr int64_t kSteps = 20000;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  auto s0 = hn::Set(d, 1.0f), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0;
  const double begin = thread_cpu_seconds();
  double seconds = 0;
  int64_t rounds = 0;
  while (seconds < 5e-3) {
    for (int64_t step = 0; step < kSteps; ++step) {
      s0 = hn::MulAdd(s0, factor, term), s1 = hn::MulAdd(s1, factor, term);
      s2 = hn::MulAdd(s2, factor, term), s3 = hn::MulAdd(s3, factor, term);
      s4 = hn::MulAdd(s4, factor, term), s5 = hn::MulAdd(s5, factor, term);
      s6 = hn::MulAdd(s6, factor, term), s7 = hn::MulAdd(s7, factor, term);
      s8 = hn::MulAdd(s8, factor, term), s9 = hn::MulAdd(s9, factor, term);
    }
    ++rounds;
    seconds = thread_cpu_seconds() - begin;
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)), hn::Add(s8, s9)));
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(sum, d, lanes);
  // The sums converge to 1: reading them keeps the loop from being removed.
  const double kept = lanes[0] > 0 ? 1.0 : 0.0;
  return kept * 2.0 * kSums * kSteps * static_cast<double>(rounds) * hn::MaxLanes(d) / seconds;
}

std::string target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace
}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace distca {

HWY_EXPORT(measure_rate);
HWY_EXPORT(target_name);

double multiply_add_rate() {
  return HWY_DYNAMIC_DISPATCH(measure_rate)();
}
std::string kernel_target() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace distca
#endif
