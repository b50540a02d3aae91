#include "attend/merge.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "kernel/merge.h"

namespace distca {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Merge, EqualsThePlainLoopWhateverThePartials) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (int round = 0; round < 50; ++round) {
    const int64_t rows = random() % 20, heads = 1 + random() % 3, head_dim = 1 + random() % 9;
    std::vector<std::vector<int64_t>> parts_of_rows(rows);
    int64_t parts = 0;
    for (auto& own : parts_of_rows)
      for (size_t i = random() % 4; i > 0; --i) own.push_back(parts++);
    // Some rows have a part in place.
    std::vector<int64_t> offsets = {0}, listed;
    for (int64_t row = 0; row < rows; ++row) {
      auto& own = parts_of_rows[row];
      if (random() % 2 == 0) own.insert(own.begin() + random() % (own.size() + 1), parts + 1 + row);
      listed.insert(listed.end(), own.begin(), own.end());
      offsets.push_back(static_cast<int64_t>(listed.size()));
    }
    const auto options = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor part_o = at::randn({parts + 1 + rows, heads, head_dim}, generator, options);
    const at::Tensor part_lse = at::randn({parts + 1 + rows, heads}, generator, options) * 400;
    for (int64_t i = 0; i <= parts + rows; ++i) {
      if (i == parts || random() % 4 == 0) {
        part_lse[i].fill_(-kInfinity);
        part_o[i].zero_();
      }
    }
    const MergeTable table = make_merge_table(parts_of_rows, parts, parts + 1, at::kCPU);
    at::Tensor o = part_o.narrow(0, parts + 1, rows).clone(),
               lse = part_lse.narrow(0, parts + 1, rows).clone();
    at::Tensor expected_o = at::empty_like(o), expected_lse = at::empty_like(lse);
    const Partials partials = {{part_o.narrow(0, 0, parts + 1), o}, {part_lse.narrow(0, 0, parts + 1), lse}};
    merge_rows(table, partials, o, lse);
    merge_partials<double>(rows, offsets.data(), listed.data(), heads, head_dim, part_o.data_ptr<double>(),
                           part_lse.data_ptr<double>(), expected_o.data_ptr<double>(),
                           expected_lse.data_ptr<double>());
    if (rows == 0) continue;
    EXPECT_LE((o - expected_o).abs().max().item<double>(), 1e-14);
    const at::Tensor finite = at::isfinite(expected_lse);
    EXPECT_TRUE(at::equal(at::isfinite(lse), finite));
    EXPECT_TRUE(
        at::equal(lse.masked_select(finite.logical_not()), expected_lse.masked_select(finite.logical_not())));
    if (finite.any().item<bool>()) {
      EXPECT_LE((lse - expected_lse).masked_select(finite).abs().max().item<double>(), 1e-12);
    }
  }
}

TEST(Merge, ManyPartsInBFloat16LoseNoMoreThanOne) {
  const int64_t parts = 256;
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor exact = at::randn({1, 1, 64}, generator, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor part_o = exact.expand({parts + 1, 1, 64}).to(at::kBFloat16).contiguous();
  const at::Tensor part_lse = at::empty({parts + 1, 1}, at::TensorOptions().dtype(at::kFloat)).zero_();
  part_o[parts].zero_();
  part_lse[parts].fill_(-kInfinity);
  std::vector<int64_t> own(parts);
  for (int64_t i = 0; i < parts; ++i) own[i] = i;
  at::Tensor o = at::empty({1, 1, 64}, at::TensorOptions().dtype(at::kBFloat16));
  at::Tensor lse = at::empty({1, 1}, at::TensorOptions().dtype(at::kFloat));
  merge_rows(make_merge_table({own}, parts, parts + 1, at::kCPU), {{part_o, {}}, {part_lse, {}}}, o, lse);
  EXPECT_TRUE(at::equal(o[0], part_o[0]));  // equal parts merge to themselves
  EXPECT_NEAR(lse.item<float>(), std::log(256.0), 1e-5);
}

}  // namespace
}  // namespace distca
