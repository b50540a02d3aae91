#include "kernel/cpu.h"

#include <gtest/gtest.h>

#include "kernel/testing.h"

namespace distca {
namespace {

using testing::convert;
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

TEST(Cpu, RandomBatchesEqualReference) {
  const std::vector<int64_t> head_dims = {64, 128, 96, 8, 40, 72, 13, 1};
  for (uint64_t seed = 1; seed <= 48; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int64_t kv_heads = 1 + seed % 3, group = std::vector<int64_t>{1, 4, 8, 2, 5}[seed % 5];
    const int64_t window = seed % 3 == 0 ? static_cast<int64_t>(seed % 40) : kNoWindow;
    const AttentionShape shape =
        make_shape(kv_heads * group, kv_heads, head_dims[seed % head_dims.size()], window);
    const auto problem = make_problem<BFloat16>(shape, random_tasks(random, 6, 220), seed);
    Compared(problem).expect_all_types(problem);
  }
}

}  // namespace
}  // namespace distca
