#include "plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "plan/validate.h"

namespace distca {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string input_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error was thrown";
}

TEST(Layout, ADocumentThatCrossesAChunkContinuesOnTheNextRank) {
  const Layout layout = pack_in_order({100, 0, 250, 10}, 3);
  EXPECT_EQ(layout.rows, 120);
  EXPECT_THAT(layout.shards,
              ElementsAre(Shard{0, {0, 100}, 0, 0}, Shard{2, {0, 20}, 0, 100}, Shard{2, {20, 140}, 1, 0},
                          Shard{2, {140, 250}, 2, 0}, Shard{3, {0, 10}, 2, 110}));
  EXPECT_THAT(layout.tokens_of_ranks(), ElementsAre(120, 120, 120));
  validate(layout);
}

TEST(Layout, RanksMayHoldNothing) {
  const Layout layout = pack_in_order({1}, 4);
  EXPECT_THAT(layout.tokens_of_ranks(), ElementsAre(1, 0, 0, 0));
  const Layout empty = pack_in_order({}, 2);
  EXPECT_EQ(empty.rows, 1);
  EXPECT_EQ(empty.tokens(), 0);
  validate(layout);
  validate(empty);
}

TEST(Layout, DocumentsThatDoNotFitAreAnInputError) {
  EXPECT_THAT(input_error([] {
                pack_in_order({100, 101}, 2, 100);
              }),
              HasSubstr("201 tokens don't fit in 2 ranks of 100 rows"));
  EXPECT_THAT(input_error([] { pack_in_order({100}, 0); }), HasSubstr("0 ranks"));
  EXPECT_THAT(input_error([] { pack_in_order({1, -4}, 2); }), HasSubstr("document 1 is -4"));
}

TEST(Documents, ListsStartAtTheirChunkOrWhereTheOneBeforeEnded) {
  const Documents documents = parse_documents(
      R"({"doc_lengths": [[150, 30], [40], [10]], "tokens_per_chunk": 100, "seed": 1})", "docs.json");
  const Layout layout = pack_documents(documents);
  EXPECT_THAT(layout.doc_lengths, ElementsAre(150, 30, 40, 10));
  EXPECT_THAT(layout.shards,
              ElementsAre(Shard{0, {0, 100}, 0, 0}, Shard{0, {100, 150}, 1, 0}, Shard{1, {0, 30}, 1, 50},
                          Shard{2, {0, 20}, 1, 80}, Shard{2, {20, 40}, 2, 0}, Shard{3, {0, 10}, 2, 20}));
}

TEST(Documents, TheChunkIsTheLongestListUnlessStated) {
  const Documents documents = parse_documents(R"({"doc_lengths": [[5, 6], [], [20]]})", "docs.json");
  EXPECT_EQ(documents.tokens_per_chunk, 20);
  EXPECT_THAT(pack_documents(documents).tokens_of_ranks(), ElementsAre(11, 0, 20));
}

TEST(Documents, ScaleRoundsLengthsAndChunkDown) {
  const Documents documents =
      parse_documents(R"({"doc_lengths": [[17, 7], [49]], "tokens_per_chunk": 50})", "docs.json", 1.0 / 8);
  EXPECT_THAT(documents.chunks, ElementsAre(ElementsAre(2, 0), ElementsAre(6)));
  EXPECT_EQ(documents.tokens_per_chunk, 6);
  EXPECT_THAT(parse_documents(R"({"doc_lengths": [[49]]})", "docs.json", 1.0 / 49).chunks,
              ElementsAre(ElementsAre(1)));
}

TEST(Documents, ErrorsNameTheFileAndThePlace) {
  const auto error = [](const char* text) {
    return input_error([&] { pack_documents(parse_documents(text, "docs.json")); });
  };
  EXPECT_THAT(error(R"({"doc_lengths": [[1], [2, -3]]})"), HasSubstr("docs.json: doc_lengths[1][1] is -3"));
  EXPECT_THAT(error(R"({"doc_lengths": [[1], [2.5]]})"), HasSubstr("docs.json: doc_lengths[1][0]: 2.5"));
  EXPECT_THAT(error(R"({"doc_lengths": [[1], 7]})"), HasSubstr("docs.json: doc_lengths[1]: 7"));
  EXPECT_THAT(error(R"({"doc_lengths": []})"), HasSubstr("docs.json"));
  EXPECT_THAT(error(R"([1])"), HasSubstr("docs.json"));
  EXPECT_THAT(error("{\n\"doc_lengths\": [[1,]]}"), HasSubstr("docs.json:2:"));
  EXPECT_THAT(error(R"({"doc_lengths": [[1]], "tokens_per_chunk": 0})"), HasSubstr("tokens_per_chunk is 0"));
  EXPECT_THAT(error(R"({"doc_lengths": [[1], [12]], "tokens_per_chunk": 10})"),
              HasSubstr("document 1 of chunk 1 ends at row 22, beyond the 2 chunks of 10 tokens"));
  EXPECT_THAT(error(R"({"doc_lengths": [[9999999999]]})"), HasSubstr("at most"));
  EXPECT_THAT(error(R"({"doc_lengths": [[9223372036854775809]]})"),
              HasSubstr("[0][0] is 9223372036854775809"));
  EXPECT_THAT(error(R"({"doc_lengths": [[18446744073709551615]]})"), HasSubstr("is 18446744073709551615"));
}

}  // namespace
}  // namespace distca
