#include "base/json.h"
#include "base/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace distca {
namespace {

TEST(Json, ErrorsNameFileLineAndColumn) {
  try {
    parse_json("{\"a\": 1,\n \"b\": }", "docs.json");
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("docs.json:2:7"));
  }
}

TEST(Json, NestingIsBounded) {
  const auto nested = [](int64_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(parse_json(nested(200), "deep.json").dump(), nested(200));
  for (int64_t depth : {201, 1'000'000}) {
    try {
      parse_json(nested(depth), "deep.json");
      FAIL() << "no error was thrown";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("deep.json: is nested deeper than 200"));
    }
  }
}

TEST(Json, ANumberTooLargeIsSaidPlainly) {
  try {
    parse_json("{\"a\": [1, 1e999]}", "numbers.json");
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "numbers.json: holds a number beyond what 64 bits can tell");
  }
}

TEST(Json, MissingFileIsAnInputErrorThatNamesIt) {
  try {
    read_json("/nowhere/x.json");
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/nowhere/x.json"));
  }
}

TEST(Json, DigestIsSixteenHexadecimalDigits) {
  EXPECT_EQ(hex_digest(0xabcULL), "0000000000000abc");
  EXPECT_EQ(parse_digest("ffffffffffffffff"), ~0ULL);
  EXPECT_THROW(parse_digest("abc"), InputError);
  EXPECT_THROW(parse_digest("000000000000000G"), InputError);
}

}  // namespace
}  // namespace distca
