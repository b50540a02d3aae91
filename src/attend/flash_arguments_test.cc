#include "attend/flash_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernel/reference.h"

namespace distca {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kDim = 4;

/// What the documentation of flash_attn_varlen_func promises, on one head: writes the rows of `o` and `lse`
/// that the call names.
void flash(const FlashCall& call, const std::vector<double>& q, const std::vector<double>& k,
           const std::vector<double>& v, std::vector<double>& o, std::vector<double>& lse) {
  for (size_t s = 0; s + 1 < call.cu_seqlens_q.size(); ++s) {
    const int64_t n = call.cu_seqlens_q[s + 1] - call.cu_seqlens_q[s];
    const int64_t m = call.cu_seqlens_k[s + 1] - call.cu_seqlens_k[s];
    EXPECT_LE(n, call.max_q);
    EXPECT_LE(m, call.max_k);
    for (int64_t i = 0; i < n; ++i) {
      const double* query = &q[call.q_rows[call.cu_seqlens_q[s] + i] * kDim];
      double sum = 0, out[kDim] = {};
      for (int64_t j = 0; j < m; ++j) {
        if (call.causal && j > i + m - n) continue;
        if (call.window_left >= 0 && j < i + m - n - call.window_left) continue;
        const int64_t row = call.k_rows[call.cu_seqlens_k[s] + j];
        double score = 0;
        for (int64_t d = 0; d < kDim; ++d) score += query[d] * k[row * kDim + d];
        sum += std::exp(score);
        for (int64_t d = 0; d < kDim; ++d) out[d] += std::exp(score) * v[row * kDim + d];
      }
      EXPECT_GT(sum, 0) << "a row that sees no key was sent to the kernel";
      const int64_t row = call.o_rows[call.cu_seqlens_q[s] + i];
      EXPECT_TRUE(std::isnan(lse[row])) << "row " << row << " is computed twice";
      lse[row] = std::log(sum);
      for (int64_t d = 0; d < kDim; ++d) o[row * kDim + d] = out[d] / sum;
    }
  }
}

void expect_equals_reference(const std::vector<KernelTask>& tasks, int64_t window_left, uint64_t seed) {
  int64_t q_rows = 0, kv_rows = 0, o_rows = 0;
  for (const KernelTask& task : tasks) {
    q_rows = std::max(q_rows, task.q_row + task.q_len);
    kv_rows = std::max(kv_rows, task.kv_row + task.kv_len);
    o_rows = std::max(o_rows, task.o_row + task.q_len);
  }
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> q(q_rows * kDim), k(kv_rows * kDim), v(kv_rows * kDim);
  for (auto* x : {&q, &k, &v}) {
    for (double& value : *x) value = normal(random);
  }
  std::vector<double> o(o_rows * kDim, 0), lse(o_rows, 0);
  const AttentionShape shape{1, 1, kDim, 1.0, window_left};
  reference_attention_forward<double>({shape, tasks, q.data(), k.data(), v.data(), o.data(), lse.data()});

  const FlashArguments arguments = make_flash_arguments(tasks, window_left);
  std::vector<double> flash_o(o_rows * kDim, NAN), flash_lse(o_rows, NAN);
  for (const FlashCall& call : arguments.calls) flash(call, q, k, v, flash_o, flash_lse);
  for (int64_t row : arguments.empty_o_rows) {
    EXPECT_TRUE(std::isnan(flash_lse[row])) << "row " << row << " is computed though it sees no key";
    flash_lse[row] = -kInfinity;
    std::fill_n(&flash_o[row * kDim], kDim, 0.0);
  }
  for (int64_t row = 0; row < o_rows; ++row) {
    if (std::isinf(lse[row])) {
      EXPECT_EQ(flash_lse[row], lse[row]) << "row " << row;
    } else {
      EXPECT_NEAR(flash_lse[row], lse[row], 1e-12) << "row " << row;
    }
    for (int64_t d = 0; d < kDim; ++d) EXPECT_NEAR(flash_o[row * kDim + d], o[row * kDim + d], 1e-12);
  }
}

TEST(FlashArguments, OfRandomTasksComputeTheReference) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    std::vector<KernelTask> tasks;
    int64_t o_rows = 0;
    for (int i = 0; i < 5; ++i) {
      KernelTask task{.q_row = pick(0, 20),
                      .q_len = pick(0, 12),
                      .q_pos = pick(0, 30),
                      .kv_row = pick(0, 20),
                      .kv_len = pick(0, 12),
                      .kv_pos = pick(0, 30),
                      .o_row = o_rows};
      if (pick(0, 2) == 0) task.q_pos = std::max<int64_t>(0, task.kv_pos + task.kv_len - task.q_len);
      o_rows += task.q_len;
      tasks.push_back(task);
    }
    expect_equals_reference(tasks, seed % 2 == 0 ? kNoWindow : pick(0, 20), seed);
  }
}

TEST(FlashArguments, AreOneCallForEachMaskKind) {
  const std::vector<KernelTask> tasks = {
      {.q_row = 0, .q_len = 4, .q_pos = 6, .kv_row = 0, .kv_len = 10, .o_row = 0},   // diagonal
      {.q_row = 4, .q_len = 3, .q_pos = 10, .kv_row = 0, .kv_len = 6, .o_row = 4},   // full
      {.q_row = 7, .q_len = 2, .q_pos = 0, .kv_row = 10, .kv_len = 2, .o_row = 7},   // diagonal
      {.q_row = 9, .q_len = 2, .q_pos = 5, .kv_row = 12, .kv_len = 6, .o_row = 9}};  // full: keys end at 6
  const FlashArguments arguments = make_flash_arguments(tasks, kNoWindow);
  ASSERT_EQ(arguments.calls.size(), 2u);
  const FlashCall &full = arguments.calls[0], &diagonal = arguments.calls[1];
  EXPECT_FALSE(full.causal);
  EXPECT_THAT(full.cu_seqlens_q, testing::ElementsAre(0, 3, 5));
  EXPECT_THAT(full.cu_seqlens_k, testing::ElementsAre(0, 6, 12));
  EXPECT_THAT(full.q_rows, testing::ElementsAre(4, 5, 6, 9, 10));
  EXPECT_TRUE(diagonal.causal);
  EXPECT_THAT(diagonal.cu_seqlens_q, testing::ElementsAre(0, 4, 6));
  EXPECT_THAT(diagonal.cu_seqlens_k, testing::ElementsAre(0, 10, 12));
  EXPECT_TRUE(consecutive(diagonal.k_rows));
  EXPECT_FALSE(consecutive(full.q_rows));
  EXPECT_THAT(arguments.empty_o_rows, testing::IsEmpty());
}

TEST(FlashArguments, PackSharedKeysOfFullTasksOnce) {
  const std::vector<KernelTask> tasks = {
      {.q_row = 0, .q_len = 2, .q_pos = 100, .kv_row = 5, .kv_len = 50, .o_row = 0},
      {.q_row = 2, .q_len = 3, .q_pos = 400, .kv_row = 5, .kv_len = 50, .o_row = 2}};
  const FlashArguments arguments = make_flash_arguments(tasks, kNoWindow);
  ASSERT_EQ(arguments.calls.size(), 1u);
  EXPECT_THAT(arguments.calls[0].cu_seqlens_q, testing::ElementsAre(0, 5));
  EXPECT_EQ(arguments.calls[0].k_rows.size(), 50u);
}

TEST(FlashArguments, OfNothingAreNothing) {
  EXPECT_TRUE(make_flash_arguments({}, kNoWindow).calls.empty());
  const std::vector<KernelTask> tasks = {{.q_len = 0, .kv_len = 5}, {.q_len = 2, .q_pos = 9, .o_row = 0}};
  const FlashArguments arguments = make_flash_arguments(tasks, kNoWindow);
  EXPECT_TRUE(arguments.calls.empty());
  EXPECT_THAT(arguments.empty_o_rows, testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace distca
