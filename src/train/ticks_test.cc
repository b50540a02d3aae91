#include "train/ticks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace distca {
namespace {

TEST(Ticks, TwoStagesAndThreeMicroBatchesAreAsDocumented) {
  const std::vector<Tick> expected = {{true, 0, {0, kIdle}}, {true, 1, {1, 0}},     {false, 0, {kIdle, 0}},
                                      {true, 2, {2, 1}},     {false, 1, {0, 1}},    {true, 3, {kIdle, 2}},
                                      {false, 2, {1, 2}},    {false, 3, {2, kIdle}}};
  EXPECT_EQ(same_phase_ticks(2, 3), expected);
}

TEST(Ticks, OneStageAlternates) {
  const std::vector<Tick> expected = {{true, 0, {0}}, {false, 0, {0}}, {true, 1, {1}}, {false, 1, {1}}};
  EXPECT_EQ(same_phase_ticks(1, 2), expected);
  EXPECT_EQ(one_forward_one_backward_ticks(1, 0, 2), expected);
}

// What any schedule keeps: a micro-batch goes forward through the stages in order, each in a later tick, and
// backward through them in reverse, after its forward there.
TEST(Ticks, SamePhaseKeepsTheOrderOfEveryMicroBatch) {
  for (int64_t stages = 1; stages <= 5; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= 7; ++micro_batches) {
      const std::vector<Tick> ticks = same_phase_ticks(stages, micro_batches);
      std::map<std::pair<int64_t, int64_t>, size_t> forward, backward;  // (stage, micro-batch) → tick
      for (size_t i = 0; i < ticks.size(); ++i) {
        for (int64_t stage = 0; stage < stages; ++stage) {
          const int64_t micro_batch = ticks[i].micro_batches[stage];
          if (micro_batch == kIdle) continue;
          auto& places = ticks[i].forward ? forward : backward;
          EXPECT_TRUE(places.insert({{stage, micro_batch}, i}).second);
        }
      }
      ASSERT_EQ(forward.size(), static_cast<size_t>(stages * micro_batches));
      ASSERT_EQ(backward.size(), forward.size());
      for (int64_t m = 0; m < micro_batches; ++m) {
        for (int64_t s = 0; s + 1 < stages; ++s) {
          EXPECT_LT((forward[{s, m}]), (forward[{s + 1, m}]));
          EXPECT_LT((backward[{s + 1, m}]), (backward[{s, m}]));
        }
        EXPECT_LT((forward[{stages - 1, m}]), (backward[{stages - 1, m}]));
      }
    }
  }
}

TEST(Ticks, OneForwardOneBackwardHoldsAtMostTheStagesBehindIt) {
  for (int64_t stages = 1; stages <= 5; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= 7; ++micro_batches) {
      for (int64_t stage = 0; stage < stages; ++stage) {
        int64_t forwards = 0, backwards = 0, most = 0;
        for (const Tick& tick : one_forward_one_backward_ticks(stages, stage, micro_batches)) {
          int64_t& done = tick.forward ? forwards : backwards;
          EXPECT_EQ(tick.micro_batches, std::vector<int64_t>{done});
          ++done;
          EXPECT_LE(backwards, forwards);
          most = std::max(most, forwards - backwards);
        }
        EXPECT_EQ(forwards, micro_batches);
        EXPECT_EQ(backwards, micro_batches);
        EXPECT_EQ(most, std::min(stages - stage, micro_batches));
      }
    }
  }
}

}  // namespace
}  // namespace distca
