// Whole runs of thread ranks that share one CUDA device, against the dense model on the CPU. What
// device_test.cc does on a device of tests, where there is a real one.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "comm/cuda/cuda_device.h"
#include "comm/nccl_threads.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

using testing::ExactMode;
using testing::RunResult;

RunResult run_on_the_device(int32_t ranks, const RunInputs& inputs) {
  RunResult result;
  run_nccl_thread_ranks(ranks, {}, make_cuda_device(0), [&](Fabric& fabric) {
    RunResult of_rank = testing::run_rank(fabric, inputs);
    if (fabric.rank() == 0) result = std::move(of_rank);
  });
  return result;
}

void expect_dense(const char* dtype, double loss, double gradient) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "there is no CUDA device here";
  at::globalContext().setAllowTF32CuBLAS(false);
  for (const char* overlap : {"pingpong", "single"})
    for (const char* memory : {"keep", "resend"})
      for (const int64_t pp : {1, 2})
        for (const int64_t servers : {0, 1})
          for (const char* rows : {"fixed", "free", "graphs"}) {
            ExactMode mode{overlap, memory, 1, pp, servers, rows, 1};
            mode.graphs = mode.layout == "graphs";
            if (mode.graphs) mode.layout = "fixed";
            SCOPED_TRACE(mode.name());
            RunInputs inputs = testing::exact_run(mode, dtype);
            if (mode.graphs) inputs.config.train.steps = 4;  // the last shows what the third's graphs left
            inputs.config.attention.kernel = "plain";
            inputs.device = {at::kCUDA, 0};
            const auto off = testing::distance(run_on_the_device(static_cast<int32_t>(4 + servers), inputs),
                                               testing::run_dense(inputs));
            EXPECT_LE(off.loss, loss);
            EXPECT_LE(off.gradient, gradient);
          }
}

TEST(OnACudaDevice, Float64RunsEqualTheDenseModel) {
  expect_dense("float64", 1e-10, 1e-11);
}
TEST(OnACudaDevice, Float32RunsEqualTheDenseModel) {
  expect_dense("float32", 5e-6, 1e-5);
}

}  // namespace
}  // namespace distca
