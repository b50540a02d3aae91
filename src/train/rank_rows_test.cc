#include "train/rank_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/check.h"

namespace distca {
namespace {

using testing::ElementsAre;

/// Token p of document d is 100·d + p.
TokenSource numbered_source() {
  TokenSource source;
  source.name = "text";
  source.documents = 100;
  source.length = [](int64_t) { return 100; };
  source.read = [](int64_t doc, Span tokens, int64_t* out) {
    for (int64_t p = tokens.begin; p < tokens.end; ++p) *out++ = 100 * doc + p;
  };
  return source;
}

NanoBatch whole_documents(const std::vector<int64_t>& lengths) {
  NanoBatch out;
  for (size_t i = 0; i < lengths.size(); ++i)
    out.documents.push_back({static_cast<int64_t>(i), {0, lengths[i]}});
  return out;
}

TEST(RankRows, TargetOfAShardsLastRowIsAnotherRanksFirstToken) {
  const NanoBatch nano_batch = whole_documents({7, 1, 4});
  const Layout layout = layout_of(nano_batch, 14, 4);
  ASSERT_EQ(layout.rows, 4) << "14 rows over 4 ranks, rounded up";
  const auto rank = [&](int32_t r) { return read_rows(nano_batch, layout, r, numbered_source(), 10000); };
  EXPECT_THAT(rank(0).tokens, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(rank(0).targets, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(rank(1).tokens, ElementsAre(4, 5, 6, 100));
  EXPECT_THAT(rank(1).positions, ElementsAre(4, 5, 6, 0));
  EXPECT_THAT(rank(1).targets, ElementsAre(5, 6, kNoTarget, kNoTarget)) << "a document of one token has none";
  EXPECT_THAT(rank(2).targets, ElementsAre(201, 202, 203, kNoTarget));
  EXPECT_THAT(rank(3).tokens, ElementsAre(0, 0, 0, 0)) << "a rank that holds nothing";
  EXPECT_THAT(rank(3).targets, testing::Each(kNoTarget));
  EXPECT_EQ(rank(3).target_count, 0);
}

TEST(RankRows, PartsOfSplitDocumentsKeepTheirTokensAndCountPositionsAnew) {
  NanoBatch nano_batch;
  nano_batch.documents = {{2, {10, 13}}, {2, {13, 15}}};
  const RankRows rows = read_rows(nano_batch, layout_of(nano_batch, 5, 1), 0, numbered_source(), 10000);
  EXPECT_THAT(rows.tokens, ElementsAre(210, 211, 212, 213, 214));
  EXPECT_THAT(rows.positions, ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(rows.targets, ElementsAre(211, 212, kNoTarget, 214, kNoTarget));
}

TEST(RankRows, PositionsGoByDocumentWhereShardsAreCutHeadAndTail) {
  // Two documents of 4 tokens, head and tail to rank 0, the middle to rank 1.
  Layout layout;
  layout.doc_lengths = {4, 4};
  layout.ranks = 2;
  layout.rows = 4;
  layout.shards = {{0, {0, 1}, 0, 0}, {0, {1, 3}, 1, 0}, {0, {3, 4}, 0, 1},
                   {1, {0, 1}, 0, 2}, {1, {1, 3}, 1, 2}, {1, {3, 4}, 0, 3}};
  const NanoBatch nano_batch = whole_documents({4, 4});
  const RankRows head_tail = read_rows(nano_batch, layout, 0, numbered_source(), 10000);
  EXPECT_THAT(head_tail.positions, ElementsAre(0, 3, 0, 3));
  EXPECT_THAT(head_tail.tokens, ElementsAre(0, 3, 100, 103));
  EXPECT_THAT(head_tail.targets, ElementsAre(1, kNoTarget, 101, kNoTarget));
}

TEST(RankRows, PaddingIsNeverCountedAsTokens) {
  // 698 tokens, padded to 704 and cut head and tail over 4 ranks in pieces of 88: rank 0 has the short one.
  Layout layout;
  layout.doc_lengths = {698};
  layout.ranks = 4;
  layout.rows = 176;
  for (int64_t piece = 0; piece < 8; ++piece) {
    const bool tail = piece >= 4;
    layout.shards.push_back({0,
                             {piece * 88, std::min<int64_t>((piece + 1) * 88, 698)},
                             static_cast<int32_t>(tail ? 7 - piece : piece),
                             tail ? 88 : 0});
  }
  EXPECT_THAT(layout.tokens_of_ranks(), ElementsAre(170, 176, 176, 176));
  const NanoBatch nano_batch = whole_documents({698});
  const auto targets = [&](int32_t rank) {
    return read_rows(nano_batch, layout, rank, numbered_source(), 10000).target_count;
  };
  EXPECT_EQ(targets(0), 169) << "the last token predicts nothing";
  EXPECT_EQ(targets(1) + targets(2) + targets(3), 3 * 176);
}

TEST(RankRows, EveryTokenAndTargetIsHeldOnceWhateverTheRanks) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 30; ++round) {
    std::vector<int64_t> lengths(1 + random() % 8);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 60);
    const NanoBatch nano_batch = whole_documents(lengths);
    const int64_t rows = nano_batch.tokens() + static_cast<int64_t>(random() % 50);
    for (int32_t ranks : {1, 2, 3, 4, 7}) {
      const Layout layout = layout_of(nano_batch, rows, ranks);
      std::vector<int64_t> targets;
      int64_t count = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const RankRows held = read_rows(nano_batch, layout, rank, numbered_source(), 10000);
        count += held.target_count;
        for (int64_t target : held.targets)
          if (target != kNoTarget) targets.push_back(target);
      }
      std::vector<int64_t> expected;
      for (size_t doc = 0; doc < lengths.size(); ++doc)
        for (int64_t p = 1; p < lengths[doc]; ++p) expected.push_back(100 * static_cast<int64_t>(doc) + p);
      EXPECT_EQ(targets, expected) << ranks << " ranks, round " << round;
      EXPECT_EQ(count, nano_batch.targets());
    }
  }
}

TEST(RankRows, ATokenBeyondTheVocabularyIsNamed) {
  const NanoBatch nano_batch = whole_documents({4, 4});
  const Layout layout = layout_of(nano_batch, 8, 2);
  EXPECT_NO_THROW(read_rows(nano_batch, layout, 0, numbered_source(), 103));
  try {
    read_rows(nano_batch, layout, 1, numbered_source(), 103);
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "text: token 3 of document 1 is 103; the model's vocabulary has 103");
  }
}

}  // namespace
}  // namespace distca
