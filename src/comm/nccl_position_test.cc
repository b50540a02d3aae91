#include "comm/nccl_position.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

/// One that has begun and finished so many operations of the whole job.
RankPosition at(int64_t begun, int64_t finished) {
  RankPosition out;
  out.links[""] = {begun, finished};
  out.last = "step " + std::to_string(begun);
  out.last_s = 31;
  return out;
}

RankPosition waiting(RankPosition position, const std::string& name, std::vector<int32_t> peers) {
  position.waits_in = name;
  position.waits_for = std::move(peers);
  return position;
}

const LateOperation kThird = {"", 3, {1, 2}};

std::string text(const std::map<int32_t, RankPosition>& answers) {
  return lateness_text(kThird, late_peers(kThird, answers), answers);
}

TEST(NcclPosition, SurvivesItsWay) {
  RankPosition position = waiting(at(7, 6), "a name\nof 2 lines ", {4, 0});
  position.links["/3:1"] = {int64_t{1} << 40, 2};
  position.error = "remote 'process'";
  position.ended = true;
  const RankPosition copy = decode_position(encode(position));
  EXPECT_EQ(copy.links.size(), 2u);
  EXPECT_EQ(copy.links.at("/3:1").begun, int64_t{1} << 40);
  EXPECT_EQ(copy.links.at("").finished, 6);
  EXPECT_EQ(copy.last, "step 7");
  EXPECT_EQ(copy.last_s, 31);
  EXPECT_EQ(copy.waits_in, "a name\nof 2 lines ");
  EXPECT_EQ(copy.waits_for, (std::vector<int32_t>{4, 0}));
  EXPECT_EQ(copy.error, "remote 'process'");
  EXPECT_TRUE(copy.ended);
  EXPECT_TRUE(decode_position(encode({})).links.empty());
}

TEST(NcclPosition, WhoHasNotBegunOrIsSilentIsLate) {
  EXPECT_EQ(late_peers(kThird, {{1, at(3, 2)}, {2, at(2, 2)}}), std::vector<int32_t>{2});
  EXPECT_EQ(text({{1, at(3, 2)}, {2, at(2, 2)}}), ", which last began step 2 31.0 s ago");
  EXPECT_EQ(late_peers(kThird, {{2, at(3, 2)}}), std::vector<int32_t>{1});
  EXPECT_EQ(text({{2, at(3, 2)}}), ", which doesn't answer");
  EXPECT_EQ(text({{1, at(2, 2)}}), ", of which rank 1 last began step 2 31.0 s ago");
  EXPECT_EQ(text({{1, {}}, {2, at(3, 2)}}), ", which has begun nothing");
  RankPosition ended = at(2, 2);
  ended.ended = true;
  EXPECT_EQ(text({{1, ended}, {2, at(3, 2)}}), ", which has ended");
}

TEST(NcclPosition, WhereAllHaveBegunErrorsAndThenWhatIsUnfinishedCount) {
  RankPosition failed = at(3, 3);
  failed.error = "internal error";
  EXPECT_EQ(late_peers(kThird, {{1, at(3, 2)}, {2, failed}}), std::vector<int32_t>{2});
  EXPECT_EQ(text({{1, at(3, 2)}, {2, failed}}), ", which says that NCCL reports 'internal error'");
  EXPECT_EQ(late_peers(kThird, {{1, at(3, 2)}, {2, at(4, 3)}}), std::vector<int32_t>{1});
  EXPECT_EQ(text({{1, at(3, 2)}, {2, at(4, 3)}}), ", which has begun it");
  EXPECT_EQ(late_peers(kThird, {{1, at(3, 3)}, {2, at(3, 3)}}), (std::vector<int32_t>{1, 2}));
}

TEST(NcclPosition, TheChainOfThoseWhoWaitIsFollowedOnce) {
  const RankPosition first = waiting(at(2, 1), "gradients", {2}), third = at(2, 2);
  EXPECT_EQ(text({{1, first}, {2, waiting(at(3, 2), "collect", {3})}, {3, third}}),
            ", which waits for rank 2 in gradients, which waits for rank 3 in collect, which last began "
            "step 2 31.0 s ago");
  EXPECT_EQ(text({{1, first}, {2, waiting(at(3, 2), "collect", {1})}}),
            ", which waits for rank 2 in gradients, which waits for rank 1 in collect");
}

}  // namespace
}  // namespace distca
