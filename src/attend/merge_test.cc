#include "attend/merge.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
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
    at::Tensor by_tensors_o = o.clone(), by_tensors_lse = lse.clone();
    merge_rows(table, partials, o, lse);
    if (table.split_rows.size(0) > 0) {
      // Tensor operations read what the loop has written elsewhere: rows in place come from the clones.
      const Partials same = {{partials.o.first, by_tensors_o}, {partials.lse.first, by_tensors_lse}};
      merge_split_rows(table, same, by_tensors_o, by_tensors_lse);
      const at::Tensor rows_of_split = table.split_rows;
      EXPECT_TRUE(at::allclose(by_tensors_o.index_select(0, rows_of_split), o.index_select(0, rows_of_split),
                               0, 1e-13));
      EXPECT_TRUE(at::allclose(by_tensors_lse.index_select(0, rows_of_split),
                               lse.index_select(0, rows_of_split), 1e-14, 0));
    }
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

TEST(Merge, SumsAreThoseOfTensorsWhateverTheTypeAndTheParts) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto options = at::TensorOptions().dtype(type);
    const at::Tensor parts = at::randn({7, 2, 3}, generator, options),
                     own = at::randn({5, 2, 3}, generator, options);
    parts[6].zero_();
    // None, one elsewhere, one in place, two, three with one in place.
    const MergeTable table = make_merge_table({{}, {4}, {9}, {0, 1}, {2, 11, 3}}, 6, 7, at::kCPU);
    at::Tensor out = own.clone();
    const at::ScalarType sum = type == at::kDouble ? at::kDouble : at::kFloat;
    sum_rows(table, {parts, out}, sum, out);
    EXPECT_EQ(out[0].abs().max().item<double>(), 0);
    EXPECT_TRUE(at::equal(out[1], parts[4]));
    EXPECT_TRUE(at::equal(out[2], own[2]));
    EXPECT_TRUE(at::equal(out[3], (parts[0].to(sum) + parts[1].to(sum)).to(type)));
    EXPECT_TRUE(at::equal(out[4], (parts[2].to(sum) + own[4].to(sum) + parts[3].to(sum)).to(type)));
    at::Tensor by_tensors = own.clone();
    sum_split_rows(table, {parts, by_tensors}, sum, by_tensors);
    EXPECT_TRUE(at::equal(by_tensors.narrow(0, 3, 2), out.narrow(0, 3, 2)));
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
