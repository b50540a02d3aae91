#include "base/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Check, MessageCarriesTheValuesInOrder) {
  EXPECT_EQ(format("rank {} of {}: {}", 3, 8, "gone"), "rank 3 of 8: gone");
  EXPECT_EQ(format("{} {}", 1), "1 {}");
  EXPECT_EQ(format("{a} {}", std::string("x")), "{a} x");
}

TEST(Check, ThrowsOnlyWhenTheConditionFails) {
  EXPECT_NO_THROW(DISTCA_CHECK(1 + 1 == 2, "arithmetic"));
  try {
    DISTCA_CHECK(false, "chunk of {} rows", 64);
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "chunk of 64 rows");
  }
}

TEST(Check, InputErrorsAreErrorsOfTheirOwnKind) {
  EXPECT_THROW(DISTCA_CHECK_INPUT(false, "bad"), InputError);
  EXPECT_THROW(DISTCA_CHECK_INPUT(false, "bad"), Error);
}

}  // namespace
}  // namespace distca
