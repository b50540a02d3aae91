#include "kernel/peak.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Peak, MultiplyAddRateIsThatOfAProcessor) {
  EXPECT_GT(multiply_add_rate(), 1e7);
  EXPECT_LT(multiply_add_rate(), 1e13);
}

TEST(Peak, NamesTheInstructionSet) {
  EXPECT_FALSE(kernel_target().empty());
}

}  // namespace
}  // namespace distca
