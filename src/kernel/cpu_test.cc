#include "kernel/cpu.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/sanitizer.h"
#include "kernel/merge.h"
#include "kernel/targets.h"
#include "kernel/testing.h"

namespace distca {
namespace {

using testing::convert;
using testing::document;
using testing::error;
using testing::fill_delta;
using testing::make_problem;
using testing::make_shape;
using testing::Problem;

/// Tasks with every relation of query and key positions; output rows apart, query and key rows shared at
/// times.
std::vector<KernelTask> random_tasks(std::mt19937_64& random, int count, int64_t longest) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<KernelTask> tasks;
  int64_t q_rows = 0, kv_rows = 0, o_rows = 0;
  for (int i = 0; i < count; ++i) {
    KernelTask task;
    task.q_len = pick(0, 5) == 0 ? pick(0, 1) : pick(0, longest);
    task.kv_len = pick(0, 5) == 0 ? pick(0, 1) : pick(0, longest);
    const int64_t kind = pick(0, 3);
    task.kv_pos = pick(0, 1) == 0 ? 0 : pick(0, longest);
    if (kind == 0) {  // diagonal
      task.q_pos = task.kv_pos + std::max<int64_t>(0, task.kv_len - task.q_len);
    } else if (kind == 1) {  // full
      task.q_pos = task.kv_pos + task.kv_len;
    } else {
      task.q_pos = pick(0, 2 * longest);
    }
    task.q_row = q_rows > 0 && pick(0, 3) == 0 ? pick(0, q_rows) : q_rows;
    task.kv_row = kv_rows > 0 && pick(0, 3) == 0 ? pick(0, kv_rows) : kv_rows;
    task.o_row = o_rows;
    q_rows = std::max(q_rows, task.q_row + task.q_len);
    kv_rows = std::max(kv_rows, task.kv_row + task.kv_len);
    o_rows += task.q_len;
    tasks.push_back(task);
  }
  return tasks;
}

/// LSE and δ by query row.
void fill_merged(Problem<double>& p) {
  // Softmax statistics of a query row over all its tasks, whose keys may overlap: any LSE and δ will do, as
  // long as both kernels get the same.
  std::vector<double> sum(p.q_rows * p.shape.heads, 0);
  Problem<double> forward = p;
  reference_attention_forward(forward.forward());
  p.lse.resize(sum.size());
  for (const KernelTask& task : p.tasks) {
    for (int64_t i = 0; i < task.q_len * p.shape.heads; ++i) {
      sum[task.q_row * p.shape.heads + i] += std::exp(forward.lse[task.o_row * p.shape.heads + i]);
    }
  }
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < sum.size(); ++i) {
    p.lse[i] = std::log(sum[i]);
    p.delta[i] = 0.1 * normal(random);
  }
}

/// Runs a batch in all three types on the same inputs and compares with the reference in float64.
struct Compared {
  Problem<double> expected;
  ThreadPool pool{2};

  explicit Compared(const Problem<BFloat16>& p) : expected(convert<double>(p)) {
    fill_merged(expected);
    lse = expected.lse;
    delta = expected.delta;
    reference_attention_backward(expected.backward());
    expected.lse.resize(expected.o_rows * expected.shape.heads);
    reference_attention_forward(expected.forward());
  }

  template <typename T>
  void expect_equal(Problem<T> p, double o_error, double lse_error, double gradient_error) {
    cpu_attention_forward(p.forward(), pool);
    EXPECT_LE(error(p.o, expected.o), o_error);
    EXPECT_LE(error(p.lse, expected.lse), lse_error);
    p.lse.assign(lse.begin(), lse.end());
    p.delta.assign(delta.begin(), delta.end());
    cpu_attention_backward(p.backward(), pool);
    EXPECT_LE(error(p.dq, expected.dq), gradient_error);
    EXPECT_LE(error(p.dk, expected.dk), gradient_error);
    EXPECT_LE(error(p.dv, expected.dv), gradient_error);
  }

  void expect_all_types(const Problem<BFloat16>& p) {
    expect_equal(convert<float>(p), 3e-6, 1e-6, 5e-6);
    expect_equal(convert<double>(p), 1e-13, 1e-13, 1e-13);
    expect_equal(p, 1.0 / 256, 1e-6, 5e-6);
  }

 private:
  std::vector<double> lse, delta;
};

void expect_random_batches_equal_reference(uint64_t seeds, int64_t longest) {
  const std::vector<int64_t> head_dims = {64, 128, 96, 8, 40, 72, 13, 1, 256};
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int64_t kv_heads = 1 + seed % 3, group = std::vector<int64_t>{1, 4, 8, 2, 5}[seed % 5];
    const int64_t window = seed % 3 == 0 ? static_cast<int64_t>(seed % 40) : kNoWindow;
    const AttentionShape shape =
        make_shape(kv_heads * group, kv_heads, head_dims[seed % head_dims.size()], window);
    const auto problem = make_problem<BFloat16>(shape, random_tasks(random, 6, longest), seed);
    Compared(problem).expect_all_types(problem);
  }
}

TEST(Cpu, RandomBatchesEqualReference) {
  expect_random_batches_equal_reference(kSanitized ? 9 : 48, kSanitized ? 70 : 220);
}

TEST(Cpu, RandomBatchesEqualReferenceWithAvx2) {
  const auto body = [] { expect_random_batches_equal_reference(kSanitized ? 9 : 27, kSanitized ? 60 : 170); };
  if (!testing::with_target(HWY_AVX2, body)) {
    GTEST_SKIP() << "this machine has no AVX2";
  }
}

TEST(Cpu, RandomBatchesEqualReferenceWithoutVectors) {
  ASSERT_TRUE(testing::with_target(HWY_STATIC_TARGET,
                                   [] { expect_random_batches_equal_reference(9, kSanitized ? 30 : 60); }));
}

template <typename T>
void run_forward(Problem<T>& p, int threads = 1) {
  ThreadPool pool(threads);
  cpu_attention_forward(p.forward(), pool);
}

template <typename T>
void run_backward(Problem<T>& p, int threads = 1) {
  ThreadPool pool(threads);
  cpu_attention_backward(p.backward(), pool);
}

TEST(Cpu, WhatAnEarlierCallLeftInScratchMemoryIsNotRead) {
  for (const int64_t window : {kNoWindow, int64_t{5}, int64_t{37}}) {
    for (const int64_t group : {1, 4}) {
      SCOPED_TRACE(::testing::Message() << "window " << window << ", group " << group);
      const auto clean =
          make_problem<float>(make_shape(2 * group, 2, 72, window),
                              {{.q_len = 331, .q_pos = 1, .kv_len = 332},
                               {.q_row = 331, .q_len = 9, .q_pos = 121, .kv_len = 130, .o_row = 331}},
                              3);
      auto before = clean, after = clean, poison = clean;
      poison.q.assign(poison.q.size(), std::numeric_limits<float>::quiet_NaN());
      poison.dout = poison.v = poison.q;
      for (auto* p : {&before, &poison, &after}) {
        run_forward(*p);
        fill_delta(*p);
        run_backward(*p);
      }
      EXPECT_EQ(after.o, before.o);
      EXPECT_EQ(after.dq, before.dq);
      EXPECT_EQ(after.dk, before.dk);
      EXPECT_EQ(after.dv, before.dv);
    }
  }
}

TEST(Cpu, ErrorsStaySmallOverEightThousandKeys) {
  const AttentionShape shape = make_shape(2, 1, 64);
  const KernelTask task{.q_len = 130, .q_pos = 8192 - 130, .kv_len = 8192};
  Problem<double> expected = make_problem<double>(shape, {task}, 1);
  Problem<float> p = convert<float>(expected);
  expected = convert<double>(p);
  reference_attention_forward(expected.forward());
  fill_delta(expected);
  reference_attention_backward(expected.backward());
  run_forward(p);
  fill_delta(p);
  run_backward(p);
  EXPECT_LE(error(p.o, expected.o), 3e-6);
  EXPECT_LE(error(p.lse, expected.lse), 1e-6);
  EXPECT_LE(error(p.dq, expected.dq), 5e-6);
  EXPECT_LE(error(p.dk, expected.dk), 5e-6);
  EXPECT_LE(error(p.dv, expected.dv), 5e-6);
}

TEST(Cpu, ScoresOfTenThousandPickTheirKeys) {
  constexpr int64_t kLength = 200, kDim = 64;
  AttentionShape shape = make_shape(4, 1, kDim);
  shape.scale = 1;
  Problem<float> p = make_problem<float>(shape, {document(kLength)}, 2);
  std::fill(p.q.begin(), p.q.end(), 0.0f);
  std::fill(p.k.begin(), p.k.end(), 0.0f);
  // Key j scores 1e4 where j is a multiple of 3, else −1e4; the last head flips the sign.
  for (int64_t i = 0; i < kLength; ++i) {
    for (int64_t head = 0; head < 4; ++head) p.q[(i * 4 + head) * kDim + 5] = head == 3 ? -100 : 100;
    p.k[i * kDim + 5] = i % 3 == 0 ? 100 : -100;
  }
  run_forward(p);
  fill_delta(p);
  run_backward(p);
  for (int64_t i = 0; i < kLength; ++i) {
    for (int64_t head = 0; head < 4; ++head) {
      std::vector<int64_t> keys;
      for (int64_t j = 0; j <= i; ++j) {
        if ((j % 3 == 0) == (head != 3)) keys.push_back(j);
      }
      const bool all_low = keys.empty();  // the first row of the last head sees one low key only
      if (all_low) keys.push_back(0);
      EXPECT_FLOAT_EQ(p.lse[i * 4 + head], (all_low ? -1e4 : 1e4) + std::log(double(keys.size())));
      for (int64_t d = 0; d < kDim; ++d) {
        double mean = 0;
        for (int64_t j : keys) mean += p.v[j * kDim + d] / double(keys.size());
        EXPECT_NEAR(p.o[(i * 4 + head) * kDim + d], mean, 2e-6);
      }
    }
  }
  for (const auto& gradient : {p.dq, p.dk, p.dv}) {
    for (float x : gradient) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(Cpu, RowsWithOneKeyCopyItsValue) {
  Problem<float> p = make_problem<float>(make_shape(4, 2, 64), {{.q_len = 70, .q_pos = 100, .kv_len = 1}}, 3);
  run_forward(p);
  for (int64_t row = 0; row < 70 * 4; ++row) {
    for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(p.o[row * 64 + d], p.v[row % 4 / 2 * 64 + d]);
  }
}

TEST(Cpu, RowsWithoutKeysAndEmptyTasksGiveZeros) {
  const std::vector<KernelTask> tasks = {{.q_len = 60, .kv_len = 30, .kv_pos = 50},
                                         {.q_row = 60, .q_len = 5, .kv_row = 30, .o_row = 60},
                                         {.q_row = 65, .kv_row = 30, .kv_len = 7, .o_row = 65}};
  Problem<float> p = make_problem<float>(make_shape(4, 2, 64), tasks, 4);
  run_forward(p);
  for (int64_t row = 0; row < 65; ++row) {
    if (row >= 50 && row < 60) continue;
    for (int64_t head = 0; head < 4; ++head) {
      EXPECT_EQ(p.lse[row * 4 + head], -std::numeric_limits<float>::infinity());
      for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(p.o[(row * 4 + head) * 64 + d], 0);
    }
  }
  fill_delta(p);
  run_backward(p);
  for (const auto& gradient : {p.dq, p.dk, p.dv}) {
    for (float x : gradient) ASSERT_TRUE(std::isfinite(x));
  }
  for (int64_t i = 0; i < 50 * 4 * 64; ++i) EXPECT_EQ(p.dq[i], 0);
  for (int64_t i = 10 * 2 * 64; i < 37 * 2 * 64; ++i) EXPECT_EQ(p.dk[i], 0);
}

TEST(Cpu, AnEmptyBatchWritesZeroGradients) {
  Problem<float> p = make_problem<float>(make_shape(4, 2, 64), {document(9)}, 5);
  p.tasks.clear();
  run_forward(p);
  run_backward(p);
  for (const auto& gradient : {p.dq, p.dk, p.dv}) {
    for (float x : gradient) EXPECT_EQ(x, 0);
  }
}

/// O and LSE bits of query `position` in a forward call over `tasks`; the row is o_row of the first task that
/// holds it.
std::vector<float> bits_of_row(const Problem<float>& whole, std::vector<KernelTask> tasks, int64_t position,
                               int threads) {
  Problem<float> p = whole;
  int64_t o_rows = 0, row = -1;
  for (KernelTask& task : tasks) {
    task.o_row = o_rows;
    o_rows += task.q_len;
    const bool holds = task.q_pos <= position && position < task.q_pos + task.q_len;
    if (row < 0 && holds) row = task.o_row + position - task.q_pos;
  }
  p.tasks = tasks;
  p.o.assign(o_rows * p.shape.heads * p.shape.head_dim, 0);
  p.lse.assign(o_rows * p.shape.heads, 0);
  run_forward(p, threads);
  const int64_t width = p.shape.heads * p.shape.head_dim;
  std::vector<float> bits(p.o.begin() + row * width, p.o.begin() + (row + 1) * width);
  bits.insert(bits.end(), p.lse.begin() + row * p.shape.heads, p.lse.begin() + (row + 1) * p.shape.heads);
  return bits;
}

TEST(Cpu, BitsOfARowDependOnItsKeysAlone) {
  constexpr int64_t kLength = 700;
  for (const AttentionShape& shape :
       {make_shape(4, 1, 64), make_shape(3, 3, 40), make_shape(2, 1, 128, 90)}) {
    const Problem<float> whole = make_problem<float>(shape, {document(kLength)}, 6);
    const auto rows = [](int64_t begin, int64_t end, int64_t keys) {
      return KernelTask{.q_row = begin, .q_len = end - begin, .q_pos = begin, .kv_len = keys};
    };
    for (int64_t position : {0, 1, 63, 127, 128, 300, 511, 699}) {
      SCOPED_TRACE(position);
      const auto expected = bits_of_row(whole, {document(kLength)}, position, 1);
      // Other threads; other rows; fewer keys beyond its own; other tasks before and after.
      EXPECT_EQ(bits_of_row(whole, {document(kLength)}, position, 3), expected);
      EXPECT_EQ(bits_of_row(whole, {rows(position, position + 1, position + 1)}, position, 1), expected);
      const int64_t begin = std::max<int64_t>(0, position - 17), end = std::min(kLength, position + 5);
      EXPECT_EQ(bits_of_row(whole, {rows(begin, end, end)}, position, 2), expected);
      EXPECT_EQ(bits_of_row(whole, {rows(begin, end, kLength)}, position, 2), expected);
      const KernelTask other{.q_row = 3, .q_len = 77, .q_pos = 5000, .kv_row = 20, .kv_len = 333};
      EXPECT_EQ(bits_of_row(whole, {other, rows(begin, end, end), other}, position, 2), expected);
    }
  }
}

TEST(Cpu, ThreadsDoNotChangeGradients) {
  std::mt19937_64 random(7);
  std::vector<KernelTask> tasks = random_tasks(random, 9, 500);
  tasks.push_back({.q_len = 900, .q_pos = 300, .kv_len = 1200, .o_row = 0});
  Problem<float> one = make_problem<float>(make_shape(8, 2, 64), tasks, 7);
  one.lse.assign(one.q_rows * 8, 3);
  one.delta.assign(one.q_rows * 8, 0.25);
  Problem<float> three = one;
  run_backward(one, 1);
  run_backward(three, 3);
  EXPECT_EQ(one.dq, three.dq);
  EXPECT_EQ(one.dk, three.dk);
  EXPECT_EQ(one.dv, three.dv);
}

TEST(Cpu, SplittingKeysChangesRoundingOnly) {
  constexpr int64_t kLength = 600, kHeads = 4, kDim = 64;
  const AttentionShape shape = make_shape(kHeads, 2, kDim);
  Problem<float> whole = make_problem<float>(shape, {document(kLength)}, 8);
  run_forward(whole);
  Problem<float> parts = whole;
  const std::vector<int64_t> cuts = {0, 128, 131, 500, 600};
  parts.tasks.clear();
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    parts.tasks.push_back({.q_len = kLength,
                           .kv_row = cuts[i],
                           .kv_len = cuts[i + 1] - cuts[i],
                           .kv_pos = cuts[i],
                           .o_row = static_cast<int64_t>(i) * kLength});
  }
  parts.o.assign(4 * whole.o.size(), 0);
  parts.lse.assign(4 * whole.lse.size(), 0);
  run_forward(parts);
  std::vector<int64_t> offsets = {0}, part_rows;
  for (int64_t row = 0; row < kLength; ++row) {
    for (int64_t part = 0; part < 4; ++part) part_rows.push_back(part * kLength + row);
    offsets.push_back(static_cast<int64_t>(part_rows.size()));
  }
  std::vector<float> o(whole.o.size()), lse(whole.lse.size());
  merge_partials(kLength, offsets.data(), part_rows.data(), kHeads, kDim, parts.o.data(), parts.lse.data(),
                 o.data(), lse.data());
  EXPECT_LE(error(o, whole.o), 3e-6);
  EXPECT_LE(error(lse, whole.lse), 1e-6);
  fill_delta(whole);
  run_backward(whole);
  parts.lse = whole.lse;
  parts.delta = whole.delta;
  run_backward(parts);
  EXPECT_LE(error(parts.dq, whole.dq), 3e-6);
  EXPECT_LE(error(parts.dk, whole.dk), 3e-6);
  EXPECT_LE(error(parts.dv, whole.dv), 3e-6);
}

/// Rows from `cut` on, away from those before.
template <typename T>
struct Cut {
  std::vector<T> first, second;
  int64_t rows;

  Cut(const std::vector<T>& all, int64_t cut, int64_t columns)
      : first(all.begin(), all.begin() + cut * columns),
        second(all.begin() + cut * columns, all.end()),
        rows(cut) {}
  TensorRows<T> both() { return {first.data(), rows, second.data()}; }
  TensorRows<const T> read() const { return {first.data(), rows, second.data()}; }
  std::vector<T> joined() const {
    std::vector<T> all = first;
    all.insert(all.end(), second.begin(), second.end());
    return all;
  }
};

/// A random row that no run of rows [begin, begin + length) has inside.
int64_t cut_between(std::mt19937_64& random, int64_t rows,
                    const std::vector<std::pair<int64_t, int64_t>>& runs) {
  std::vector<int64_t> cuts;
  for (int64_t cut = 0; cut <= rows; ++cut) {
    const bool inside = std::any_of(runs.begin(), runs.end(), [&](const auto& run) {
      return run.first < cut && cut < run.first + run.second;
    });
    if (!inside) cuts.push_back(cut);
  }
  return cuts[random() % cuts.size()];
}

TEST(CpuAttention, RowsInTwoBuffersGiveTheSameBits) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    const AttentionShape shape = make_shape(4, 2, 8 * (1 + static_cast<int64_t>(random() % 9)));
    Problem<float> p = make_problem<float>(shape, random_tasks(random, 6, 60), random());
    const int64_t wide = shape.heads * shape.head_dim, narrow = shape.kv_heads * shape.head_dim;
    std::vector<std::pair<int64_t, int64_t>> q_runs, kv_runs, o_runs;
    for (const KernelTask& task : p.tasks) {
      q_runs.push_back({task.q_row, task.q_len});
      kv_runs.push_back({task.kv_row, task.kv_len});
      o_runs.push_back({task.o_row, task.q_len});
    }
    const int64_t q_cut = cut_between(random, p.q_rows, q_runs),
                  kv_cut = cut_between(random, p.kv_rows, kv_runs);
    const int64_t o_cut = cut_between(random, p.o_rows, o_runs);
    Cut<float> q(p.q, q_cut, wide), k(p.k, kv_cut, narrow), v(p.v, kv_cut, narrow), o(p.o, o_cut, wide);
    Cut<float> dout(p.dout, q_cut, wide), o_lse(p.lse, o_cut, shape.heads);
    cpu_attention_forward(p.forward(), pool);
    cpu_attention_forward<float>({shape, p.tasks, q.read(), k.read(), v.read(), o.both(), o_lse.both()},
                                 pool);
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(o.joined(), p.o));
    EXPECT_TRUE(same(o_lse.joined(), p.lse));

    std::vector<float> lse(p.q_rows * shape.heads), delta(lse.size());
    for (size_t i = 0; i < lse.size(); ++i) lse[i] = 3 + 0.1F * static_cast<float>(i % 7), delta[i] = 0.1F;
    p.lse = lse, p.delta = delta;
    Problem<float> other = p;
    const Cut<float> lse_cut(lse, q_cut, shape.heads), delta_cut(delta, q_cut, shape.heads);
    cpu_attention_backward(p.backward(), pool);
    AttentionBackward<float> args = other.backward();
    args.q = q.read(), args.k = k.read(), args.v = v.read(), args.dout = dout.read();
    args.lse = lse_cut.read(), args.delta = delta_cut.read();
    cpu_attention_backward(args, pool);
    EXPECT_TRUE(same(other.dq, p.dq));
    EXPECT_TRUE(same(other.dk, p.dk));
    EXPECT_TRUE(same(other.dv, p.dv));
  }
}

}  // namespace
}  // namespace distca
