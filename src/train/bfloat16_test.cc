#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/sanitizer.h"
#include "train/testing.h"

namespace distca {
namespace {

TEST(Bfloat16, LossCurveOfAHundredStepsStaysWithinTwoPercentOfFloat32s) {
  const size_t steps = kSanitized ? 10 : 100;
  std::vector<double> curves[2];
  for (const bool rough : {false, true}) {
    RunInputs inputs = testing::small_run(rough ? "bfloat16" : "float32");
    inputs.config.train.steps = static_cast<int64_t>(steps);
    curves[rough] = testing::run_on_threads(2, inputs).losses;
  }
  ASSERT_EQ(curves[0].size(), steps);
  EXPECT_LT(curves[0].back(), curves[0].front()) << "something must be learnt";
  for (size_t step = 0; step < steps; ++step) {
    EXPECT_NEAR(curves[1][step] / curves[0][step], 1, 0.02) << "step " << step;
  }
}

}  // namespace
}  // namespace distca
