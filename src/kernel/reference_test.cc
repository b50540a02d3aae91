#include "kernel/reference.h"

#include <gtest/gtest.h>

#include "base/check.h"
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Reference, AveragesVisibleValuesWhenScoresAreEqual) {
  Problem<double> p = make_problem<double>(make_shape(2, 1, 3), {document(5)}, 1);
  p.q.assign(p.q.size(), 0);
  reference_attention_forward(p.forward());
  for (int64_t query = 0; query < 5; ++query) {
    for (int64_t head = 0; head < 2; ++head) {
      EXPECT_NEAR(p.lse[query * 2 + head], std::log(query + 1.0), 1e-15);
      for (int64_t d = 0; d < 3; ++d) {
        double mean = 0;
        for (int64_t key = 0; key <= query; ++key) mean += p.v[key * 3 + d] / (query + 1);
        EXPECT_NEAR(p.o[(query * 2 + head) * 3 + d], mean, 1e-15);
      }
    }
  }
}

TEST(Reference, WeighsTwoKeysByTheLogisticFunctionOfTheirScores) {
  Problem<double> p = make_problem<double>({1, 1, 1, 2.0}, {document(2)}, 1);
  p.q = {0, 1.5};
  p.k = {0.25, -1};
  p.v = {3, 7};
  reference_attention_forward(p.forward());
  const double weight = 1 / (1 + std::exp(2.0 * 1.5 * (-1 - 0.25)));  // of the first key
  EXPECT_NEAR(p.o[1], 3 * weight + 7 * (1 - weight), 1e-15);
  EXPECT_NEAR(p.lse[1], 2.0 * 1.5 * 0.25 - std::log(weight), 1e-15);
}

TEST(Reference, ReadsTheKeyValueHeadOfTheGroup) {
  Problem<double> p = make_problem<double>(make_shape(6, 2, 2), {document(1)}, 2);
  reference_attention_forward(p.forward());
  for (int64_t head = 0; head < 6; ++head) {
    for (int64_t d = 0; d < 2; ++d) EXPECT_EQ(p.o[head * 2 + d], p.v[head / 3 * 2 + d]);
  }
}

TEST(Reference, SeesTheKeysOfTheWindowByPosition) {
  AttentionShape shape = make_shape(1, 1, 4, 2);
  Problem<double> p = make_problem<double>(shape, {{.q_len = 4, .q_pos = 6, .kv_len = 5, .kv_pos = 4}}, 3);
  p.q.assign(p.q.size(), 0);
  reference_attention_forward(p.forward());
  // Queries at 6, 7, 8, 9; keys at 4 … 8; each query sees [its position − 2, its position].
  const std::vector<double> seen = {3, 3, 3, 2};
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(p.lse[i], std::log(seen[i]), 1e-15);
}

TEST(Reference, GivesZeroAndEmptyLseToRowsWithoutKeys) {
  std::vector<KernelTask> tasks = {{.q_len = 3, .q_pos = 0, .kv_len = 4, .kv_pos = 2},
                                   {.q_row = 3, .q_len = 2, .kv_row = 4, .o_row = 3},
                                   {.q_row = 5, .kv_row = 4, .kv_len = 3, .o_row = 5}};
  Problem<double> p = make_problem<double>(make_shape(1, 1, 2), tasks, 4);
  reference_attention_forward(p.forward());
  for (int64_t row : {0, 1, 3, 4}) {
    EXPECT_EQ(p.lse[row], -kInfinity);
    EXPECT_EQ(p.o[row * 2], 0);
    EXPECT_EQ(p.o[row * 2 + 1], 0);
  }
  EXPECT_EQ(p.o[4], p.v[0]);
  fill_delta(p);
  reference_attention_backward(p.backward());
  for (int64_t row : {0, 1, 3, 4}) EXPECT_EQ(p.dq[row * 2], 0);
  for (int64_t key : {1, 2, 3, 4, 5, 6}) {
    EXPECT_EQ(p.dk[key * 2], 0);
    EXPECT_EQ(p.dv[key * 2], 0);
  }
  EXPECT_EQ(p.dv[0], p.dout[4]);
}

TEST(Reference, WritesZeroGradientsForAnEmptyBatch) {
  Problem<double> p = make_problem<double>(make_shape(2, 1, 4), {document(3)}, 5);
  p.tasks.clear();
  p.lse.assign(p.lse.size(), 0);
  reference_attention_backward(p.backward());
  for (double x : p.dq) EXPECT_EQ(x, 0);
  for (double x : p.dk) EXPECT_EQ(x, 0);
  for (double x : p.dv) EXPECT_EQ(x, 0);
}

TEST(Reference, GradientsAreTheDerivativesOfTheOutput) {
  const AttentionShape shape = make_shape(4, 2, 5, 3);
  const std::vector<KernelTask> tasks = {
      document(5), {.q_row = 5, .q_len = 3, .q_pos = 4, .kv_row = 5, .kv_len = 6, .kv_pos = 1, .o_row = 5}};
  Problem<double> p = make_problem<double>(shape, tasks, 6);
  reference_attention_forward(p.forward());
  fill_delta(p);
  reference_attention_backward(p.backward());
  const auto loss = [&] {
    reference_attention_forward(p.forward());
    double sum = 0;
    for (size_t i = 0; i < p.o.size(); ++i) sum += p.o[i] * p.dout[i];
    return sum;
  };
  const auto expect_derivative = [&](std::vector<double>& x, const std::vector<double>& gradient) {
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = x[i];
      x[i] = value + kStep;
      const double above = loss();
      x[i] = value - kStep;
      const double below = loss();
      x[i] = value;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8) << "entry " << i;
    }
  };
  expect_derivative(p.q, p.dq);
  expect_derivative(p.k, p.dk);
  expect_derivative(p.v, p.dv);
}

TEST(Reference, StaysFiniteWithScoresOfTenThousand) {
  Problem<float> p = make_problem<float>({1, 1, 1, 1.0}, {document(3)}, 7);
  p.q = {100, 100, -100};
  p.k = {100, -100, 100};
  p.v = {1, 2, 4};
  reference_attention_forward(p.forward());
  EXPECT_EQ(p.o, (std::vector<float>{1, 1, 2}));
  EXPECT_EQ(p.lse, (std::vector<float>{1e4f, 1e4f, 1e4f}));
}

TEST(Reference, Float32AndBFloat16FollowFloat64) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Problem<BFloat16> b = make_problem<BFloat16>(make_shape(4, 1, 24), {document(70)}, seed);
    Problem<float> f = convert<float>(b);
    Problem<double> d = convert<double>(b);
    const auto run = [](auto& p) {
      reference_attention_forward(p.forward());
      fill_delta(p);
      reference_attention_backward(p.backward());
    };
    run(b);
    run(f);
    run(d);
    EXPECT_LE(error(f.o, d.o), 3e-6);
    EXPECT_LE(error(f.lse, d.lse), 1e-6);
    EXPECT_LE(error(f.dq, d.dq), 5e-6);
    EXPECT_LE(error(f.dk, d.dk), 5e-6);
    EXPECT_LE(error(f.dv, d.dv), 5e-6);
    EXPECT_LE(error(b.o, d.o), 1.0 / 256);
    EXPECT_LE(error(b.lse, d.lse), 1e-6);
    // δ is made of the rounded O.
    EXPECT_LE(error(b.dq, d.dq), 1.0 / 64);
    EXPECT_LE(error(b.dk, d.dk), 1.0 / 64);
    EXPECT_LE(error(b.dv, d.dv), 5e-6);
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(1.00390625f).bits, 0x3f80);  // halfway, the even one is below
  EXPECT_EQ(to_bfloat16(1.01171875f).bits, 0x3f82);  // halfway, the even one is above
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(to_bfloat16(3.4e38f).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(AttentionShape, NamesWhatCanNotBe) {
  EXPECT_NO_THROW(make_shape(8, 2, 64).check());
  try {
    make_shape(6, 4, 64).check();
    FAIL() << "6 heads over 4 key/value heads passed";
  } catch (const InputError& fault) {
    EXPECT_NE(std::string(fault.what()).find("6 query heads can't share 4"), std::string::npos);
  }
  EXPECT_THROW(make_shape(0, 1, 64).check(), InputError);
  EXPECT_THROW(make_shape(1, 0, 64).check(), InputError);
  EXPECT_THROW(make_shape(1, 1, 0).check(), InputError);
  EXPECT_THROW(make_shape(1, 1, 8, -1).check(), InputError);
}

}  // namespace
}  // namespace distca
