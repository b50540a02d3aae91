#include "attend/live_bytes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "attend/buffer_pool.h"

namespace distca {
namespace {

class LiveBytesOf : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { enable_live_bytes(); }
  at::Tensor tensor(int64_t bytes) const {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(GetParam()));
  }
};

TEST_P(LiveBytesOf, TensorsCountWhileTheyLiveAndThePeakStays) {
  LiveBytes& count = new_live_bytes();
  const LiveBytesScope scope(&count);
  at::Tensor a = tensor(1000);
  {
    const at::Tensor b = tensor(500), view = b.narrow(0, 0, 10), nothing = tensor(0);
    EXPECT_EQ(count.now(), 1500);
  }
  EXPECT_EQ(count.now(), 1000);
  a = tensor(10);
  EXPECT_EQ(count.now(), 10);
  EXPECT_EQ(count.peak(), 1500);
  count.reset_peak();
  EXPECT_EQ(count.peak(), 10);
}

TEST_P(LiveBytesOf, OperatorsCountWhatTheyAllocate) {
  LiveBytes& count = new_live_bytes();
  const LiveBytesScope scope(&count);
  const at::Tensor x = at::zeros({10, 10}, at::TensorOptions().dtype(at::kFloat).device(GetParam()));
  const at::Tensor y = (x + 1).to(at::kDouble);
  EXPECT_EQ(count.now(), 400 + 800);
  EXPECT_EQ(count.peak(), 400 + 400 + 800);
}

TEST_P(LiveBytesOf, ThreadsCountForThemselvesAndOthersFreeForThem) {
  constexpr int kRanks = 4;
  std::vector<LiveBytes*> counts;
  std::vector<at::Tensor> tensors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) counts.push_back(&new_live_bytes());
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const LiveBytesScope scope(counts[rank]);
      for (int i = 0; i < 100; ++i) tensors[rank] = tensor(100 * (rank + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(counts[rank]->now(), 100 * (rank + 1));
    EXPECT_EQ(counts[rank]->peak(), 200 * (rank + 1));
    tensors[rank] = at::Tensor();
    EXPECT_EQ(counts[rank]->now(), 0);
  }
}

TEST_P(LiveBytesOf, ScopesNestAndATensorStaysWithItsCount) {
  LiveBytes &outer = new_live_bytes(), &inner = new_live_bytes();
  at::Tensor kept, uncounted = tensor(7);
  EXPECT_EQ(current_live_bytes(), nullptr);
  {
    const LiveBytesScope scope(&outer);
    {
      const LiveBytesScope nested(&inner);
      kept = tensor(100);
    }
    EXPECT_EQ(current_live_bytes(), &outer);
    uncounted = at::Tensor();
    EXPECT_EQ(outer.now(), 0);
  }
  EXPECT_EQ(inner.now(), 100);
  kept = at::Tensor();
  EXPECT_EQ(inner.now(), 0);
}

TEST_P(LiveBytesOf, PooledMemoryCountsAsLongAsThePoolHoldsIt) {
  LiveBytes& count = new_live_bytes();
  const LiveBytesScope scope(&count);
  {
    BufferPool pool;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = pool.take({100, 7}, at::kFloat, GetParam());
      EXPECT_EQ(x.sizes(), at::IntArrayRef({100, 7}));
      EXPECT_EQ(x.device().type(), GetParam());
      EXPECT_EQ(count.now(), pool.bytes_held());
    }
    EXPECT_EQ(pool.allocations(), 1);
    EXPECT_EQ(count.now(), pool.bytes_held());
  }
  EXPECT_EQ(count.now(), 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, LiveBytesOf, testing::Values(at::kCPU, at::kMeta),
                         [](const auto& info) { return info.param == at::kCPU ? "Cpu" : "Meta"; });

}  // namespace
}  // namespace distca
