#include "plan/task.h"

#include <gtest/gtest.h>

#include "plan/random_plan.h"

namespace distca {
namespace {

int64_t counted_pairs(const Task& task, int64_t window_left) {
  int64_t count = 0;
  for (int64_t q = task.q.begin; q < task.q.end; ++q) {
    for (int64_t k = task.kv.begin; k < task.kv.end; ++k) count += k <= q && k >= q - window_left;
  }
  return count;
}

int64_t counted_padded_pairs(const Task& task) {
  int64_t sum = 0;
  for (int64_t at = task.q.begin; at < task.q.end; at += kTileRows) {
    const Span rows{at, std::min(at + kTileRows, task.q.end)};
    const int64_t tile = counted_pairs({0, rows, task.kv, 0}, 1 << 30) * kTileRows;
    sum += (tile + rows.size() - 1) / rows.size();
  }
  return sum;
}

TEST(Task, PairsEqualACountByHand) {
  const uint64_t seed = 20260101;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int i = 0; i < 500; ++i) {
    const int64_t q = random.between(0, 300), kv = random.between(0, 300);
    const Task task{0, {q, q + random.between(0, 300)}, {kv, kv + random.between(0, 300)}, 0};
    EXPECT_EQ(pairs(task), counted_pairs(task, 1 << 30));
    EXPECT_EQ(padded_pairs(task), counted_padded_pairs(task));
    const int64_t window = random.between(0, 400);
    EXPECT_EQ(pairs(task, window), counted_pairs(task, window));
  }
}

TEST(Task, PairsOfASixteenMillionTokenDocumentAreExact) {
  const int64_t n = 16'777'216;
  EXPECT_EQ(pairs({0, {0, n}, {0, n}, 0}), n / 2 * (n + 1));
  EXPECT_EQ(padded_pairs({0, {0, n}, {0, n}, 0}), n / 2 * (n + 1));
  EXPECT_EQ(pairs({0, {n, 2 * n}, {0, n}, 0}), n * n);
}

TEST(Task, ARaggedTileCostsAsMuchPerRowAsAFullOne) {
  EXPECT_EQ(padded_pairs({0, {256, 257}, {0, 256}, 0}), 128 * 256);
  EXPECT_EQ(padded_pairs({0, {256, 256 + 130}, {0, 256}, 0}), 2 * 128 * 256);
  EXPECT_EQ(padded_pairs({0, {5, 5}, {0, 5}, 0}), 0);
}

}  // namespace
}  // namespace distca
