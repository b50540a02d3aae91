#include "attend/device_bench.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/sanitizer.h"

namespace distca {
namespace {

TEST(PackedTasks, CountPairsAsTheMaskLeavesThem) {
  const AttentionShape shape{2, 1, 8, 1};
  PackedTasks causal(at::kCPU, shape, 3, 2, 5), fewer_keys(at::kCPU, shape, 1, 5, 4);
  EXPECT_EQ(causal.flops(false), 3 * (4 + 5) * 2 * 8 * 4);
  EXPECT_EQ(causal.flops(true), 3 * (4 + 5) * 2 * 8 * 10);
  EXPECT_EQ(fewer_keys.flops(false), 5 * 2 * 2 * 8 * 4);  // 4 − (5 − 1) / 2 keys
  causal.forward(), causal.backward();
  fewer_keys.forward(), fewer_keys.backward();
}

TEST(DeviceBench, HoldsManyTasksAgainstAProductAndOneDocument) {
  if (kSanitized) GTEST_SKIP() << "times under a sanitizer tell nothing";
  std::vector<std::string> seen;
  const AttentionBench bench = bench_attention_on(
      at::kCPU, {.quick = true, .only = "tasks2/q128/kv4096"},
      [&](const BenchRow& row) { seen.push_back(row.name + " beside " + row.baseline); }, 8192);
  EXPECT_THAT(seen,
              testing::ElementsAre("attention/forward/tasks2/q128/kv4096/d128/gqa4 beside at::mm",
                                   "attention/forward/tasks2/q128/kv4096/d128/gqa4 beside one document",
                                   "attention/backward/tasks2/q128/kv4096/d128/gqa4 beside at::mm",
                                   "attention/backward/tasks2/q128/kv4096/d128/gqa4 beside one document"));
  for (const BenchRow& row : bench.rows) {
    EXPECT_GT(row.value, 0);
    EXPECT_GT(row.ratio, 0);
  }
  EXPECT_GT(bench.product, 0);
}

TEST(DeviceBench, NoSuchShapeIsAnInputErrorThatNamesIt) {
  EXPECT_THROW(bench_attention_on(
                   at::kCPU, {.quick = true, .only = "doc7"}, [](const BenchRow&) {}, 8192),
               InputError);
}

}  // namespace
}  // namespace distca
