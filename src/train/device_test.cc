// Whole runs on a device that is not the CPU: the dense model's numbers, and every access to its memory in
// order.
#include <gtest/gtest.h>

#include "attend/recording_device.h"
#include "comm/threads.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

using testing::ExactMode;
using testing::RunResult;

RunResult run_on_devices(int32_t ranks, const RunInputs& inputs) {
  RunResult result;
  run_thread_ranks(ranks, {}, [&](Fabric& fabric) {
    RunInputs own = inputs;
    own.device = testing::recording_device(fabric.rank());
    RunResult of_rank = testing::run_rank(fabric, own);
    if (fabric.rank() == 0) result = std::move(of_rank);
  });
  return result;
}

TEST(OnADevice, RunsEqualTheDenseModel) {
  for (const char* overlap : {"pingpong", "single"})
    for (const char* memory : {"keep", "resend"})
      for (const int64_t tp : {1, 2})
        for (const int64_t pp : {1, 2}) {
          const ExactMode mode{overlap, memory, tp, pp, 0, "fixed", 1};
          SCOPED_TRACE(mode.name());
          RunInputs inputs = testing::exact_run(mode, "float64");
          inputs.config.train.steps = 2;
          const auto off = testing::distance(run_on_devices(mode.ranks(), inputs), testing::run_dense(inputs));
          EXPECT_LE(off.loss, 1e-10);
          EXPECT_LE(off.gradient, 1e-11);
        }
}

}  // namespace
}  // namespace distca
