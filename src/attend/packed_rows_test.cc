#include "attend/packed_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace distca {
namespace {

constexpr int64_t kWidth = 3;

/// Random rows of a pair of tensors: in any order or in a few runs, some of them several times or none.
struct Drawn {
  int64_t first_rows = 0, second_rows = 0;
  std::vector<int64_t> rows;

  explicit Drawn(std::mt19937_64& random, bool distinct = false) {
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    first_rows = pick(0, 12), second_rows = pick(first_rows == 0 ? 1 : 0, 12);
    const int64_t all = first_rows + second_rows, runs = pick(0, 4);
    std::set<int64_t> seen;
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t begin = pick(0, all - 1), end = pick(begin, all);
      for (int64_t row = begin; row < end; ++row)
        if (seen.insert(row).second || !distinct) rows.push_back(row);
    }
    if (pick(0, 1) == 1) std::shuffle(rows.begin(), rows.end(), random);
  }

  int64_t all() const { return first_rows + second_rows; }
  int64_t count() const { return static_cast<int64_t>(rows.size()); }
  PackedRows packed() const { return make_packed_rows(rows, first_rows); }
  /// A tensor of the rows of both as the pair that it is; its second is undefined where it has no rows.
  RowPair pair_of(const at::Tensor& both) const {
    return {both.narrow(0, 0, first_rows),
            second_rows == 0 ? at::Tensor() : both.narrow(0, first_rows, second_rows)};
  }
};

at::Tensor random_rows(int64_t rows) {
  return at::randn({rows, kWidth}, at::kDouble);
}

TEST(PackedRows, TakePutAddAndFillWhatALoopOverRowsDoes) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Drawn drawn(random);
    const PackedRows packed = drawn.packed();
    const at::Tensor both = random_rows(drawn.all()), values = random_rows(drawn.count());
    at::Tensor sums = random_rows(drawn.all());
    const at::Tensor expected_sums = sums.clone();
    const at::Tensor taken = packed.take(drawn.pair_of(both));
    ASSERT_EQ(taken.size(0), drawn.count());
    for (int64_t i = 0; i < drawn.count(); ++i) {
      EXPECT_TRUE(taken[i].equal(both[drawn.rows[static_cast<size_t>(i)]])) << "packed row " << i;
      expected_sums[drawn.rows[static_cast<size_t>(i)]].add_(values[i]);
    }
    packed.add(sums, values);
    EXPECT_TRUE(sums.allclose(expected_sums, 1e-14, 1e-14));

    const Drawn target(random, /*distinct=*/true);
    const at::Tensor put = random_rows(target.all()), from = random_rows(target.count());
    const at::Tensor expected_put = put.clone(), filled = put.clone(), expected_filled = put.clone();
    for (int64_t i = 0; i < target.count(); ++i) {
      expected_put[target.rows[static_cast<size_t>(i)]].copy_(from[i]);
      expected_filled[target.rows[static_cast<size_t>(i)]].fill_(-2.5);
    }
    target.packed().put(target.pair_of(put), from.to(at::kFloat));
    target.packed().fill(target.pair_of(filled), -2.5);
    EXPECT_TRUE(put.allclose(expected_put, 1e-7, 1e-6));
    EXPECT_TRUE(filled.equal(expected_filled));
  }
}

TEST(PackedRows, AreViewsWithoutAnIndexWhereRowsAreConsecutiveInOneTensor) {
  const at::Tensor first = random_rows(5), second = random_rows(7);
  const PackedRows in_first = make_packed_rows(std::vector<int64_t>{1, 2, 3}, 5);
  const PackedRows in_second = make_packed_rows(std::vector<int64_t>{6, 7}, 5);
  EXPECT_EQ(in_first.take({first, second}).data_ptr(), first[1].data_ptr());
  EXPECT_EQ(in_second.take({first, second}).data_ptr(), second[1].data_ptr());
  int64_t indices = 0;
  const auto count = [&](const at::Tensor& x) { return ++indices, x; };
  in_first.mapped(count), in_second.mapped(count);
  EXPECT_EQ(indices, 0);
}

TEST(PackedRows, CountRowsIn64Bits) {
  constexpr int64_t kFar = int64_t{5} << 32;
  const PackedRows packed = make_packed_rows(std::vector<int64_t>{3, kFar + 1, kFar + 9}, kFar);
  EXPECT_EQ(packed.all.index.scalar_type(), at::kLong);
  EXPECT_EQ(packed.all.index[2].item<int64_t>(), kFar + 9);
  EXPECT_EQ(packed.parts[0].own.begin, 3);
  EXPECT_EQ(packed.parts[1].own.index[1].item<int64_t>(), 9);
  const PackedRows run = make_packed_rows(std::vector<int64_t>{kFar + 1, kFar + 2}, 0);
  EXPECT_EQ(run.parts[1].own.begin, kFar + 1);
}

}  // namespace
}  // namespace distca
