// exactness [FIRST [COUNT]]: every way to split a small run over up to eight ranks against the dense model,
// in float64: losses of 3 steps to 1e-10, gradients of step 0 to 1e-11 of their norm. A line a mode; exit
// code 1 when one is further off.
#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/check.h"
#include "base/clock.h"
#include "train/exact_modes.h"

int main(int argc, char** argv) {
  using namespace distca;
  const size_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const size_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : SIZE_MAX;
  const std::vector<testing::ExactMode> modes = testing::all_exact_modes();
  std::map<int64_t, testing::RunResult> dense;  // by micro-batches
  int failures = 0;
  for (size_t i = first; i < modes.size() && i - first < count; ++i) {
    const testing::ExactMode& mode = modes[i];
    const RunInputs inputs = testing::exact_run(mode, "float64");
    if (!dense.count(mode.micro_batches)) dense[mode.micro_batches] = testing::run_dense(inputs);
    const double begin = wall_seconds();
    try {
      const testing::Distance off =
          testing::distance(testing::run_on_threads(mode.ranks(), inputs), dense[mode.micro_batches]);
      const bool good = off.loss <= 1e-10 && off.gradient <= 1e-11;
      failures += !good;
      std::printf("%s %3zu/%zu  loss %.1e  gradient %.1e  %4.1f s  %s\n", good ? "ok  " : "FAIL", i + 1,
                  modes.size(), off.loss, off.gradient, wall_seconds() - begin, mode.name().c_str());
    } catch (const std::exception& error) {
      ++failures;
      std::printf("FAIL %3zu/%zu  %s: %s\n", i + 1, modes.size(), mode.name().c_str(), error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d of %zu modes failed\n", failures, modes.size());
  return failures > 0;
}
