#include "kernel/merge.h"

#include <gtest/gtest.h>

#include "kernel/testing.h"

namespace distca {
namespace {

using testing::error;
using testing::make_problem;
using testing::make_shape;
using testing::Problem;

/// Queries [0, length) of a document against its keys cut at `cuts`: one task a run of keys, output rows
/// apart.
std::vector<KernelTask> split_keys(int64_t length, const std::vector<int64_t>& cuts) {
  std::vector<KernelTask> tasks;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    tasks.push_back({.q_len = length,
                     .kv_row = cuts[i],
                     .kv_len = cuts[i + 1] - cuts[i],
                     .kv_pos = cuts[i],
                     .o_row = static_cast<int64_t>(i) * length});
  }
  return tasks;
}

TEST(Merge, OfSplitKeysIsTheWhole) {
  constexpr int64_t kLength = 37, kHeads = 4, kDim = 8;
  const AttentionShape shape = make_shape(kHeads, 2, kDim);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Problem<double> whole = make_problem<double>(shape, split_keys(kLength, {0, kLength}), seed);
    Problem<double> parts = make_problem<double>(shape, split_keys(kLength, {0, 5, 5, 30, kLength}), seed);
    reference_attention_forward(whole.forward());
    reference_attention_forward(parts.forward());
    std::vector<int64_t> offsets = {0}, part_rows;
    for (int64_t row = 0; row < kLength; ++row) {
      for (int64_t part = 0; part < 4; ++part) part_rows.push_back(part * kLength + row);
      offsets.push_back(part_rows.size());
    }
    std::vector<double> o(whole.o.size()), lse(whole.lse.size());
    merge_partials(kLength, offsets.data(), part_rows.data(), kHeads, kDim, parts.o.data(), parts.lse.data(),
                   o.data(), lse.data());
    EXPECT_LE(error(o, whole.o), 1e-14);
    EXPECT_LE(error(lse, whole.lse), 1e-14);
  }
}

TEST(Merge, EmptyPartialsContributeNothingWhateverTheirOutputHolds) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> part_o = {kNan, kNan, 3, 4, kNan, kNan}, part_lse = {kEmpty, 2, kEmpty};
  const std::vector<int64_t> offsets = {0, 3, 5, 5}, part_rows = {0, 1, 2, 0, 2};
  std::vector<float> o(6, kNan), lse(3, kNan);
  merge_partials(3, offsets.data(), part_rows.data(), 1, 2, part_o.data(), part_lse.data(), o.data(),
                 lse.data());
  EXPECT_EQ(o, (std::vector<float>{3, 4, 0, 0, 0, 0}));
  EXPECT_EQ(lse, (std::vector<float>{2, kEmpty, kEmpty}));
}

TEST(Merge, DoesNotOverflowWithLargeLse) {
  const std::vector<float> part_o = {1, 3, 5}, part_lse = {1e4f, 1e4f, -1e4f};
  const std::vector<int64_t> offsets = {0, 3}, part_rows = {0, 1, 2};
  float o = 0, lse = 0;
  merge_partials(1, offsets.data(), part_rows.data(), 1, 1, part_o.data(), part_lse.data(), &o, &lse);
  EXPECT_EQ(o, 2);
  EXPECT_FLOAT_EQ(lse, 1e4f + std::log(2.0f));
}

TEST(Merge, OfOnePartialIsThatPartial) {
  const std::vector<float> part_o = {0.1f, 0.7f}, part_lse = {0.3f};
  const std::vector<int64_t> offsets = {0, 1}, part_rows = {0};
  std::vector<float> o(2), lse(1);
  merge_partials(1, offsets.data(), part_rows.data(), 1, 2, part_o.data(), part_lse.data(), o.data(),
                 lse.data());
  EXPECT_EQ(o, part_o);
  EXPECT_EQ(lse, part_lse);
}

TEST(Merge, OfBFloat16PartialsRoundsOnce) {
  std::vector<BFloat16> part_o;
  std::vector<float> part_lse;
  std::vector<int64_t> offsets = {0, 64}, part_rows;
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal;
  double expected = 0, weights = 0;
  for (int64_t i = 0; i < 64; ++i) {
    part_o.push_back(to_bfloat16(1 + normal(random)));
    part_lse.push_back(normal(random));
    part_rows.push_back(i);
    expected += std::exp(part_lse[i]) * to_float(part_o[i]);
    weights += std::exp(part_lse[i]);
  }
  expected /= weights;
  BFloat16 o;
  float lse;
  merge_partials(1, offsets.data(), part_rows.data(), 1, 1, part_o.data(), part_lse.data(), &o, &lse);
  EXPECT_NEAR(to_float(o), expected, std::abs(expected) / 256);
  EXPECT_NEAR(lse, std::log(weights), 1e-6);
}

}  // namespace
}  // namespace distca
