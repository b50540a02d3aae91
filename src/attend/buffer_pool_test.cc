#include "attend/buffer_pool.h"

#include <gtest/gtest.h>

#include <memory>

namespace distca {
namespace {

TEST(BufferPool, GivesReturnedMemoryAgain) {
  BufferPool pool;
  const void* first = nullptr;
  {
    const at::Tensor one = pool.take({100, 3}, at::kFloat, at::kCPU);
    const at::Tensor two = pool.take({100, 3}, at::kFloat, at::kCPU);
    EXPECT_NE(one.data_ptr(), two.data_ptr());
    first = one.data_ptr();
    EXPECT_EQ(pool.allocations(), 2);
  }
  const at::Tensor again = pool.take({50, 5}, at::kFloat, at::kCPU),
                   other = pool.take({150}, at::kDouble, at::kCPU);
  EXPECT_TRUE(again.data_ptr() == first || other.data_ptr() == first);
  EXPECT_EQ(pool.allocations(), 2);
}

TEST(BufferPool, DoesNotGiveALargeBlockForASmallNeed) {
  BufferPool pool;
  pool.take({1 << 20}, at::kFloat, at::kCPU);
  pool.take({16}, at::kFloat, at::kCPU);
  EXPECT_EQ(pool.allocations(), 2);
}

TEST(BufferPool, TensorsOutliveThePool) {
  auto pool = std::make_unique<BufferPool>();
  at::Tensor kept = pool->take({1000}, at::kDouble, at::kCPU);
  pool.reset();
  kept.fill_(2);
  EXPECT_EQ(kept.sum().item<double>(), 2000);
}

TEST(BufferPool, HandsOutTensorsOfNoRows) {
  BufferPool pool;
  EXPECT_EQ(pool.take({0, 4, 8}, at::kBFloat16, at::kCPU).numel(), 0);
  EXPECT_EQ(pool.allocations(), 0);
}

TEST(BufferPool, TrimmingLetsGoOfWhatARoundDidNotTake) {
  BufferPool pool;
  const auto round = [&](int64_t bytes) {
    const at::Tensor always = pool.take({1000}, at::kByte, at::kCPU),
                     now = pool.take({bytes}, at::kByte, at::kCPU);
  };
  round(1 << 20);
  pool.trim();
  const int64_t both = pool.bytes_held();
  round(10);
  pool.trim();
  EXPECT_LT(pool.bytes_held(), both - (1 << 19));
  const int64_t allocations = pool.allocations(), held = pool.bytes_held();
  for (int i = 0; i < 5; ++i) {
    round(10);
    pool.trim();
  }
  EXPECT_EQ(pool.allocations(), allocations);
  EXPECT_EQ(pool.bytes_held(), held);
  EXPECT_GE(pool.peak_bytes_in_use(), 1 << 20);
}

}  // namespace
}  // namespace distca
