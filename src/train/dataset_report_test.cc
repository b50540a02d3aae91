#include "train/dataset_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace distca {
namespace {

TokenSource source_of(std::vector<int64_t> lengths) {
  TokenSource source;
  source.name = "lengths";
  source.documents = static_cast<int64_t>(lengths.size());
  source.length = [lengths](int64_t document) { return lengths[static_cast<size_t>(document)]; };
  return source;
}

BatchInputs batch(int64_t tokens, int64_t nano_batches = 1) {
  BatchInputs inputs;
  inputs.tokens_per_batch = tokens;
  inputs.nano_batches = nano_batches;
  return inputs;
}

TEST(DatasetReport, LengthsAreCountedInBinsOfPowersOfTwo) {
  const LengthReport report = report_lengths(source_of({3, 1, 2, 9, 8, 15}));
  EXPECT_EQ(report.documents, 6);
  EXPECT_EQ(report.tokens, 38);
  EXPECT_EQ(report.longest, 15);
  EXPECT_EQ(report.longest_document, 5);
  ASSERT_EQ(report.bins.size(), 4U);  // 1, 2–3, 4–7, 8–15
  EXPECT_EQ(report.bins[1].documents, 2);
  EXPECT_EQ(report.bins[1].pairs, 3 + 6);
  EXPECT_EQ(report.bins[2].documents, 0);
  EXPECT_EQ(report.bins[3].least, 8);
  EXPECT_EQ(report.bins[3].most, 15);
  EXPECT_EQ(report.bins[3].tokens, 32);
}

TEST(DatasetReport, NoAndEmptyDocumentsAreDescribed) {
  EXPECT_TRUE(report_lengths(source_of({})).bins.empty());
  const LengthReport report = report_lengths(source_of({0, 0}));
  ASSERT_EQ(report.bins.size(), 1U);
  EXPECT_EQ(report.bins[0].documents, 2);
  EXPECT_EQ(report.bins[0].most, 0);
  EXPECT_EQ(report.longest_document, -1);
}

TEST(DatasetReport, LengthsBeyond32BitsAreCounted) {
  const int64_t length = int64_t{1} << 40;
  const LengthReport report = report_lengths(source_of({length, length}));
  EXPECT_EQ(report.tokens, 2 * length);
  EXPECT_EQ(report.bins.back().least, length);
}

// Eight tokens over two ranks: queries 0–3 see 1 + 2 + 3 + 4 = 10 keys, queries 4–7 see 5 + 6 + 7 + 8 = 26.
TEST(DatasetReport, OneLongDocumentLoadsTheRanksOfItsEnd) {
  const SkewReport report = report_skew(source_of({8, 8, 8}), batch(8), 2);
  EXPECT_DOUBLE_EQ(report.mean, 26.0 / 18);
  EXPECT_DOUBLE_EQ(report.worst, 26.0 / 18);
  EXPECT_EQ(report.padding, 0);
  EXPECT_EQ(report.split, 0);
}

TEST(DatasetReport, EqualDocumentsOnRanksOfTheirOwnAreEven) {
  const SkewReport report = report_skew(source_of(std::vector<int64_t>(64, 4)), batch(16), 4);
  EXPECT_DOUBLE_EQ(report.worst, 1);
  EXPECT_GE(report.steps, 16);
}

// A part of 4 rows on 8 ranks: 4 tokens of one document on a rank each, loads 1, 2, 3, 4, 0, 0, 0, 0.
TEST(DatasetReport, LongDocumentsAreCutAndRanksMayHoldNothing) {
  const SkewReport report = report_skew(source_of({12}), batch(8, 2), 8);
  EXPECT_EQ(report.split, 1);
  EXPECT_DOUBLE_EQ(report.worst, 4 * 8 / 10.0);
  EXPECT_THROW(report_skew(source_of({12}), batch(7, 2), 8), InputError);
  EXPECT_THROW(report_skew(source_of({12}), batch(8), 0), InputError);
  EXPECT_THROW(report_skew(source_of({0}), batch(8), 1), InputError);
}

}  // namespace
}  // namespace distca
