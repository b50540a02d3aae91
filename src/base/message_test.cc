#include "base/message.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "base/check.h"

namespace distca {
namespace {

TEST(Message, IsWholeOfOurErrorsAndTheFirstLineOfOthers) {
  EXPECT_EQ(message_of(Error("rank 0 waits\nrank 1 sleeps")), "rank 0 waits\nrank 1 sleeps");
  EXPECT_EQ(message_of(InputError("a file")), "a file");
  EXPECT_EQ(message_of(std::runtime_error("can't allocate\nframe #0: f()")), "can't allocate");
  EXPECT_EQ(message_of(std::runtime_error("")), "");
  EXPECT_EQ(message_of(std::bad_alloc()), "out of memory");
}

}  // namespace
}  // namespace distca
