// Counts this program's allocations, to show that a warmed-up kernel makes none.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernel/arena.h"
#include "kernel/cpu.h"
#include "kernel/testing.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace distca {
namespace {

TEST(CpuAllocation, AllocatesNothingAfterWarmUp) {
  std::vector<KernelTask> tasks;
  for (int64_t i = 0; i < 5; ++i) {
    tasks.push_back({.q_row = i * 200, .q_len = 200, .q_pos = 300, .kv_len = 500, .o_row = i * 200});
  }
  testing::Problem<float> p = testing::make_problem<float>(testing::make_shape(8, 1, 64), tasks, 1);
  // Threads take what they find, so only one thread is sure to have seen the largest tile.
  ThreadPool pool(1);
  const auto run = [&] {
    cpu_attention_forward(p.forward(), pool);
    cpu_attention_backward(p.backward(), pool);
  };
  run();
  testing::fill_delta(p);
  run();
  const int64_t before = allocations;
  const size_t capacity = Arena::of_thread().capacity();
  run();
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(Arena::of_thread().capacity(), capacity);
}

TEST(CpuAllocation, ForwardScratchMemoryDoesNotGrowWithTheSequence) {
  const auto capacity_after = [](int64_t length) {
    testing::Problem<float> p = testing::make_problem<float>(
        testing::make_shape(1, 1, 64), {{.q_len = 600, .q_pos = length, .kv_len = length}}, 1);
    ThreadPool pool(1);
    cpu_attention_forward(p.forward(), pool);
    return Arena::of_thread().capacity();
  };
  const size_t small = capacity_after(600);
  EXPECT_EQ(capacity_after(20000), small);
}

}  // namespace
}  // namespace distca
