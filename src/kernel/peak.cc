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

/// Operations per second of CPU time of `round`, which does `operations` of them, over about 5 ms.
template <typename Round>
double measure(const Round& round, double operations) {
  const double begin = thread_cpu_seconds();
  double seconds = 0;
  int64_t rounds = 0;
  while (seconds < 5e-3) {
    round();
    ++rounds;
    seconds = thread_cpu_seconds() - begin;
  }
  return operations * static_cast<double>(rounds) / seconds;
}

constexpr int64_t kSteps = 20000;

double measure_rate() {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  // Each begins at another value: of sums that are always equal a compiler makes one, which takes an
  // instruction where they take twelve.
  auto s0 = hn::Set(d, 1.0f), s1 = hn::Set(d, 1.1f), s2 = hn::Set(d, 1.2f), s3 = hn::Set(d, 1.3f);
  auto s4 = hn::Set(d, 1.4f), s5 = hn::Set(d, 1.5f), s6 = hn::Set(d, 1.6f), s7 = hn::Set(d, 1.7f);
  auto s8 = hn::Set(d, 1.8f), s9 = hn::Set(d, 1.9f), s10 = hn::Set(d, 2.0f), s11 = hn::Set(d, 2.1f);
  const auto round = [&]() HWY_ATTR {
    for (int64_t step = 0; step < kSteps; ++step) {
      s0 = hn::MulAdd(s0, factor, term), s1 = hn::MulAdd(s1, factor, term);
      s2 = hn::MulAdd(s2, factor, term), s3 = hn::MulAdd(s3, factor, term);
      s4 = hn::MulAdd(s4, factor, term), s5 = hn::MulAdd(s5, factor, term);
      s6 = hn::MulAdd(s6, factor, term), s7 = hn::MulAdd(s7, factor, term);
      s8 = hn::MulAdd(s8, factor, term), s9 = hn::MulAdd(s9, factor, term);
      s10 = hn::MulAdd(s10, factor, term), s11 = hn::MulAdd(s11, factor, term);
    }
  };
  const double rate = measure(round, 2.0 * kPeakSums * kSteps * static_cast<double>(hn::Lanes(d)));
  const auto sum = hn::Add(
      hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
      hn::Add(hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)), hn::Add(hn::Add(s8, s9), hn::Add(s10, s11))));
  // The sums converge to 1: reading them keeps the loop from being removed.
  return hn::GetLane(hn::SumOfLanes(d, sum)) > 0 ? rate : 0;
}

double measure_chain() {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  auto sum = hn::Set(d, 1.1f);
  const auto round = [&]() HWY_ATTR {
    for (int64_t step = 0; step < kSteps; ++step) sum = hn::MulAdd(sum, factor, term);
  };
  const double rate = measure(round, 2.0 * kSteps * static_cast<double>(hn::Lanes(d)));
  return hn::GetLane(hn::SumOfLanes(d, sum)) > 0 ? rate : 0;
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
HWY_EXPORT(measure_chain);
HWY_EXPORT(target_name);

double multiply_add_rate() {
  return HWY_DYNAMIC_DISPATCH(measure_rate)();
}
double dependent_multiply_add_rate() {
  return HWY_DYNAMIC_DISPATCH(measure_chain)();
}
std::string kernel_target() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace distca
#endif
