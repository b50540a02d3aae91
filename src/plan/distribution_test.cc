#include "plan/distribution.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <sstream>
#include <tuple>

#include "base/check.h"
#include "plan/length_tables.h"

namespace distca {
namespace {

TEST(Distribution, ChunksAreFullAndSeedsDiffer) {
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    const Documents documents = sample_documents(distribution, 8, 131072, 42);
    for (const auto& chunk : documents.chunks) {
      EXPECT_EQ(std::accumulate(chunk.begin(), chunk.end(), int64_t{0}), 131072);
    }
    EXPECT_EQ(documents.chunks, sample_documents(distribution, 8, 131072, 42).chunks);
    EXPECT_NE(documents.chunks, sample_documents(distribution, 8, 131072, 43).chunks);
  }
}

/// Share of tokens in documents of 64K scaled and more, from the published bucket table: long ones weigh 4,
/// short 1/2.
double expected_long_share(double long_tokens) {
  return 4 * long_tokens / (4 * long_tokens + (1 - long_tokens) / 2);
}

TEST(Distribution, LongDocumentsHoldTheShareOfTokensThatTheRecipeGivesThem) {
  // Buckets 65,536 and longer hold .066702 + .061250 of wlbllm's tokens.
  LengthSampler sampler(Distribution::kWlbllm, 65536, 7);
  double all = 0, in_long = 0;
  for (int i = 0; i < 400000; ++i) {
    const auto length = static_cast<double>(sampler.next());
    all += length;
    if (length >= 65536) in_long += length;
  }
  EXPECT_NEAR(in_long / all, expected_long_share(0.127952), 0.01);
}

TEST(Distribution, RawLengthsHaveThePublishedMeanAndTail) {
  // mean=3961.787, count>=65536=528 of 99519; mean=3051.903, 47 of 77932.
  for (const auto& [distribution, mean, tail] :
       {std::tuple(Distribution::kWlbllm, 3961.787, 528), std::tuple(Distribution::kProlong, 3051.903, 47)}) {
    const int64_t count = raw_documents(distribution);
    double sum = 0;
    int64_t is_long = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double length =
          raw_length_at(distribution, (static_cast<double>(i) + 0.5) / static_cast<double>(count));
      sum += length;
      is_long += length >= 65536;
    }
    EXPECT_NEAR(sum / static_cast<double>(count), mean, 0.01 * mean);
    EXPECT_NEAR(static_cast<double>(is_long), tail, 0.03 * tail);
  }
}

TEST(Distribution, ThreeTenthsOfLongProlongDocumentsBecomeOneChunk) {
  LengthSampler sampler(Distribution::kProlong, 131072, 7);
  int64_t is_long = 0, is_chunk = 0, count = 0, short_count = 0;
  double short_sum = 0;
  for (; is_long < 1000; ++count) {
    const int64_t length = sampler.next();
    is_long += length >= 65536;
    is_chunk += length == 131072;
    if (length < 65536) {
      short_sum += static_cast<double>(length);
      ++short_count;
    }
  }
  EXPECT_EQ(is_chunk, 300);
  // 47 of 77,932 raw documents are long and come eight times as often.
  EXPECT_NEAR(static_cast<double>(count) / 1000, 1 + 77885.0 / 47 / 8, 20);
  // Buckets below 64K hold 1 - .028058 of 237,840,913 tokens.
  EXPECT_NEAR(short_sum / static_cast<double>(short_count), 237840913 * (1 - 0.028058) / 77885, 40);
}

TEST(Distribution, TablesAreTheMeasuredOnes) {
  std::ifstream in(DISTCA_SOURCE_DIR "/../shared/data/doc_length_quantiles.tsv");
  if (!in.good()) GTEST_SKIP() << "no shared data here";
  std::string line;
  size_t i = 0;
  while (std::getline(in, line)) {
    if (line[0] == '#' || line[0] == 'p') continue;
    std::istringstream fields(line);
    double p = 0;
    int32_t wlbllm = 0, prolong = 0;
    fields >> p >> wlbllm >> prolong;
    ASSERT_EQ(kLengthProbabilities[i], p);
    ASSERT_EQ(kWlbllmLengths[i], wlbllm);
    ASSERT_EQ(kProlongLengths[i], prolong);
    ++i;
  }
  EXPECT_EQ(i, std::size(kLengthProbabilities));
}

TEST(Distribution, UnknownNamesAndEmptyChunksAreInputErrors) {
  EXPECT_THROW(distribution_named("zipf"), InputError);
  EXPECT_THROW(sample_documents(Distribution::kProlong, 0, 100, 1), InputError);
  EXPECT_THROW(sample_documents(Distribution::kProlong, 1, 0, 1), InputError);
}

}  // namespace
}  // namespace distca
