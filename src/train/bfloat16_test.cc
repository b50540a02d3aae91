#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "train/testing.h"

namespace distca {
namespace {

TEST(Bfloat16, LossCurveOfAHundredStepsStaysWithinTwoPercentOfFloat32s) {
  std::vector<double> curves[2];
  for (const bool rough : {false, true}) {
    RunInputs inputs = testing::small_run(rough ? "bfloat16" : "float32");
    inputs.config.train.steps = 100;
    curves[rough] = testing::run_on_threads(2, inputs).losses;
  }
  ASSERT_EQ(curves[0].size(), 100U);
  EXPECT_LT(curves[0].back(), curves[0].front()) << "something must be learnt";
  for (size_t step = 0; step < 100; ++step) {
    EXPECT_NEAR(curves[1][step] / curves[0][step], 1, 0.02) << "step " << step;
  }
}

}  // namespace
}  // namespace distca
