#include "base/heap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

#include "base/sanitizer.h"

namespace distca {
namespace {

constexpr size_t kBytes = size_t{96} << 20;

/// Page faults of writing to fresh memory that is then freed.
int64_t faults_of_use() {
  const auto faults = [] {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const int64_t before = faults();
  void* const memory = std::malloc(kBytes);
  std::memset(memory, 1, kBytes);
  asm volatile("" : : "g"(memory) : "memory");
  std::free(memory);
  return faults() - before;
}

TEST(Heap, FreedMemoryIsTakenAgain) {
#ifndef __GLIBC__
  GTEST_SKIP() << "not glibc";
#endif
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own heap";
  EXPECT_GE(faults_of_use() + faults_of_use(), 2) << "nothing was kept before";
  keep_freed_memory();
  faults_of_use();
  EXPECT_LE(faults_of_use(), 4);
}

}  // namespace
}  // namespace distca
