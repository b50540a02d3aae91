#include "attend/flash_tables.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <random>

#include "attend/kernel_suite.h"
#include "attend/masked_attention.h"
#include "attend/recording_device.h"
#include "base/check.h"

namespace distca {
namespace {

std::vector<int64_t> listed(const at::Tensor& x) {
  const at::Tensor rows = x.to(at::kLong).contiguous();
  return {rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel()};
}

/// The rows that a list names.
std::vector<int64_t> listed(const RowList& list) {
  if (list.index.defined()) return listed(list.index);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < list.count; ++i) rows.push_back(list.begin + i);
  return rows;
}

std::vector<KernelTask> random_tasks(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<KernelTask> tasks;
  int64_t o_rows = 0;
  for (int i = 0; i < 5; ++i) {
    tasks.push_back({.q_row = pick(0, 20),
                     .q_len = pick(0, 12),
                     .q_pos = pick(0, 30),
                     .kv_row = pick(0, 20),
                     .kv_len = pick(0, 12),
                     .kv_pos = pick(0, 30),
                     .o_row = o_rows});
    o_rows += tasks.back().q_len;
  }
  return tasks;
}

TEST(FlashTables, OfRandomTasksAreTheArguments) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::vector<KernelTask> tasks = random_tasks(random);
    const int64_t window = seed % 3 == 0 ? static_cast<int64_t>(seed % 15) : kNoWindow;
    const FirstRows first = {static_cast<int64_t>(seed % 25), static_cast<int64_t>(seed % 31), 7};
    const auto tables = make_flash_tables(tasks, window, first);
    const FlashArguments arguments = make_flash_arguments(tasks, window);
    ASSERT_EQ(tables->calls.size(), arguments.calls.size());
    for (size_t i = 0; i < arguments.calls.size(); ++i) {
      const FlashCall& call = arguments.calls[i];
      const FlashCallTables& made = tables->calls[i];
      EXPECT_EQ(made.cu_seqlens_q.scalar_type(), at::kInt);
      EXPECT_EQ(listed(made.cu_seqlens_q),
                std::vector<int64_t>(call.cu_seqlens_q.begin(), call.cu_seqlens_q.end()));
      EXPECT_EQ(listed(made.cu_seqlens_k),
                std::vector<int64_t>(call.cu_seqlens_k.begin(), call.cu_seqlens_k.end()));
      EXPECT_EQ(listed(made.q.all), call.q_rows);
      EXPECT_EQ(listed(made.k.all), call.k_rows);
      EXPECT_EQ(listed(made.o.all), call.o_rows);
      EXPECT_EQ(std::tuple(made.causal, made.window_left, made.max_q, made.max_k),
                std::tuple(call.causal, call.window_left, call.max_q, call.max_k));
    }
    EXPECT_EQ(listed(tables->empty_o.all), arguments.empty_o_rows);
  }
}

TEST(FlashTables, MoveEachTensorOnceAndLeaveTheOriginals) {
  const auto tables = make_flash_tables(suite::kTasks, kNoWindow, {40, 60, 40});
  std::vector<const void*> moved;
  const auto copy = std::dynamic_pointer_cast<const FlashTables>(tables->mapped([&](const at::Tensor& x) {
    moved.push_back(x.data_ptr());
    return x.to(testing::recording_device(0));
  }));
  ASSERT_NE(copy, nullptr);
  std::sort(moved.begin(), moved.end());
  EXPECT_EQ(std::adjacent_find(moved.begin(), moved.end()), moved.end());
  EXPECT_EQ(copy->calls.at(0).cu_seqlens_q.device(), testing::recording_device(0));
  EXPECT_TRUE(tables->calls.at(0).cu_seqlens_q.is_cpu());
  EXPECT_EQ(listed(copy->calls.at(0).cu_seqlens_q.cpu()), listed(tables->calls.at(0).cu_seqlens_q));
}

TEST(FlashTables, OfOtherTensorsAreRefused) {
  const auto tables = make_flash_tables(suite::kTasks, kNoWindow, {40, 60, 40});
  tables->check({40, 60, 40}, kNoWindow);
  EXPECT_THROW(tables->check({41, 60, 40}, kNoWindow), Error);
  EXPECT_THROW(tables->check({40, 60, 40}, 8), Error);
}

/// The whole of the kernel but flash attention itself.
TEST(PackingKernel, EqualsReference) {
  const auto kernel = make_packing_kernel("masked", testing::make_masked_attention());
  for (const at::Device device : {at::Device(at::kCPU), testing::recording_device(1)})
    for (const int64_t window : {kNoWindow, int64_t{0}, int64_t{7}, int64_t{64}})
      suite::expect_equals_reference(*kernel, device, at::kDouble, 1e-12, window);
}

TEST(PackingKernel, IsAsExactInBFloat16AsPytorch) {
  const auto kernel = make_packing_kernel("masked", testing::make_masked_attention());
  for (const AttentionShape& shape : {AttentionShape{4, 4, 16, 0.25}, AttentionShape{8, 2, 24, 0.2}})
    for (uint64_t seed = 1; seed <= 5; ++seed)
      suite::expect_as_exact_as_pytorch(*kernel, at::kCPU, at::kBFloat16, shape, seed, 40);
}

}  // namespace
}  // namespace distca
