#include "kernel/rows.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace distca {
namespace {

TEST(Rows, EveryRowComesFromTheSourceItsNumberSays) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto first = static_cast<int64_t>(random() % 20), second = static_cast<int64_t>(random() % 20);
    const int64_t width = 1 + static_cast<int64_t>(random() % 5);
    const int64_t rows = first + second == 0 ? 0 : static_cast<int64_t>(random() % 40);
    std::vector<int32_t> all;
    for (int64_t i = 0; i < (first + second) * width; ++i) all.push_back(static_cast<int32_t>(i));
    const std::vector<int32_t> a(all.begin(), all.begin() + first * width);
    const std::vector<int32_t> b(all.begin() + first * width, all.end());
    std::vector<int64_t> index;
    for (int64_t i = 0; i < rows; ++i) {
      const bool goes_on = i > 0 && random() % 3 > 0 && index.back() + 1 < first + second;
      index.push_back(goes_on ? index.back() + 1 : static_cast<int64_t>(random()) % (first + second));
      if (index.back() < 0) index.back() += first + second;
    }
    std::vector<int32_t> out(static_cast<size_t>(rows * width), -1);
    copy_rows(out.data(), {a.data(), first, b.data()}, index.data(), rows,
              width * static_cast<int64_t>(sizeof(int32_t)));
    for (int64_t i = 0; i < rows * width; ++i)
      ASSERT_EQ(out[static_cast<size_t>(i)], index[static_cast<size_t>(i / width)] * width + i % width);
  }
}

TEST(Rows, DotsAreThoseOfThePlainLoop) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const int64_t width : {0, 1, 7, 16, 64, 100}) {
    const int64_t rows = 13;
    std::vector<double> a(static_cast<size_t>(rows * width)), b = a, out(static_cast<size_t>(rows));
    for (double& x : a) x = normal(random);
    for (double& x : b) x = normal(random);
    const std::vector<float> af(a.begin(), a.end()), bf(b.begin(), b.end());
    std::vector<float> outf(static_cast<size_t>(rows));
    row_dots(out.data(), a.data(), b.data(), rows, width);
    row_dots(outf.data(), af.data(), bf.data(), rows, width);
    for (int64_t i = 0; i < rows; ++i) {
      double expected = 0;
      for (int64_t j = 0; j < width; ++j)
        expected += a[static_cast<size_t>(i * width + j)] * b[static_cast<size_t>(i * width + j)];
      EXPECT_NEAR(out[static_cast<size_t>(i)], expected, 1e-13);
      EXPECT_NEAR(outf[static_cast<size_t>(i)], expected, 1e-4);
    }
  }
}

}  // namespace
}  // namespace distca
