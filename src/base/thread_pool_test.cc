#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace distca {
namespace {

TEST(ThreadPool, RunsEveryIterationOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      pool.run(count, [&](int64_t i, int thread) {
        ASSERT_LT(thread, threads);
        ++calls[i];
      });
      for (const auto& n : calls) EXPECT_EQ(n, 1) << "of " << count << " on " << threads << " threads";
    }
  }
}

TEST(ThreadPool, HandsOnTheFirstErrorAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.run(10,
                        [](int64_t i, int) {
                          if (i == 4) throw std::runtime_error("four");
                        }),
               std::runtime_error);
  std::atomic<int> calls = 0;
  pool.run(10, [&](int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 10);
}

}  // namespace
}  // namespace distca
