#include "kernel/peak.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/sanitizer.h"

namespace distca {
namespace {

TEST(Peak, MultiplyAddRateIsThatOfAProcessor) {
  EXPECT_GT(multiply_add_rate(), 1e7);
  EXPECT_LT(multiply_add_rate(), 1e13);
}

// A processor has two or so units that begin a multiply-add a cycle and end it four or five later: ten sums
// at most advance in the time of one. As many as there are would be a loop that was compiled to one.
TEST(Peak, SumsRunSideBySideAndNotAsOne) {
#ifndef __OPTIMIZE__
  GTEST_SKIP() << "a build without optimization keeps the sums in memory";
#endif
  if (kSanitized) GTEST_SKIP() << "a sanitizer's code is slower than the sums";
  double least = 1e300;
  for (int i = 0; i < 5; ++i) least = std::min(least, multiply_add_rate() / dependent_multiply_add_rate());
  EXPECT_GT(least, 1.5);
  EXPECT_LT(least, kPeakSums - 1);
}

TEST(Peak, NamesTheInstructionSet) {
  EXPECT_FALSE(kernel_target().empty());
}

}  // namespace
}  // namespace distca
