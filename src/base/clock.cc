#include "base/clock.h"

#include <time.h>

namespace distca {
namespace {

double seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double wall_seconds() {
  return seconds(CLOCK_MONOTONIC);
}

double thread_cpu_seconds() {
  return seconds(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace distca
