#include "train/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attend/live_bytes.h"
#include "base/check.h"
#include "comm/threads.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

using testing::ExactMode;

struct Compared {
  PeakMemory predicted;
  int64_t measured = 0;
};

/// Each rank's, over the whole run.
std::vector<Compared> compare(const RunInputs& inputs, int32_t ranks, int64_t dry_steps) {
  enable_live_bytes();
  std::vector<Compared> out(static_cast<size_t>(ranks));
  run_thread_ranks(ranks, {}, [&](Fabric& fabric) {
    Compared& mine = out[static_cast<size_t>(fabric.rank())];
    const BatchStream stream(inputs.source, batch_inputs(inputs.config));
    mine.predicted = dry_run(inputs, stream, {fabric.rank(), ranks, dry_steps});
    LiveBytes& count = new_live_bytes();
    const LiveBytesScope scope(&count);
    Trainer trainer(fabric, inputs);
    count.reset_peak();
    for (int64_t step = 0; step < inputs.config.train.steps; ++step) trainer.step();
    mine.measured = count.peak();
  });
  return out;
}

void expect_close(const Compared& rank, size_t number) {
  const double ratio = static_cast<double>(rank.predicted.peak) / static_cast<double>(rank.measured);
  EXPECT_LE(ratio, 1.10) << "rank " << number;
  EXPECT_GE(ratio, 0.98) << "rank " << number;
}

class DryRun : public ::testing::TestWithParam<ExactMode> {};

TEST_P(DryRun, PeakOfEveryRankIsWithinTenPercentAndNeverTwoBelow) {
  RunInputs inputs = testing::exact_run(GetParam(), "float32");
  // Wide enough that the tables of the step that is prepared meanwhile, there a little sooner or later, don't
  // decide.
  inputs.model.hidden_size = 128, inputs.model.intermediate_size = 192, inputs.model.head_dim = 32;
  inputs.config.train.steps = 2;
  const std::vector<Compared> ranks = compare(inputs, GetParam().ranks(), inputs.config.train.steps);
  for (size_t rank = 0; rank < ranks.size(); ++rank) expect_close(ranks[rank], rank);
}

TEST(DryRunWithGraphs, CountsWhatTheyReadAndWrite) {
  RunInputs inputs = testing::exact_run({}, "float32");
  const auto peak = [&] {
    const BatchStream stream(inputs.source, batch_inputs(inputs.config));
    return dry_run(inputs, stream, {0, 8, 2}).peak;
  };
  const int64_t without = peak();
  inputs.config.attention.graphs = true;
  const int64_t rows = rows_of_nano_batch(inputs.config) / 8;
  const LlamaConfig& model = inputs.model;
  const int64_t kv = model.num_key_value_heads * model.head_dim;
  // Of each of two nano-batches at least dK and dV, which are held beside what backward needs at its peak.
  EXPECT_GE(peak(), without + 2 * rows * 4 * 2 * kv);
  EXPECT_LE(peak(), 2 * without);
}

// Parameters dominate: the norm and the update need no more than backward does.
TEST(DryRunOfALargeVocabulary, PeakIsWithinTenPercentAndNeverTwoBelow) {
  RunInputs inputs = testing::small_run("float32");
  inputs.model.vocab_size = 6000;
  inputs.config.train.steps = 2;
  const std::vector<Compared> ranks = compare(inputs, 2, inputs.config.train.steps);
  for (size_t rank = 0; rank < ranks.size(); ++rank) expect_close(ranks[rank], rank);
}

// Documents and plans of every step are others.
TEST(DryRunOfTheFirstSteps, PeakHoldsForManyMore) {
  RunInputs inputs = testing::small_run("float32");
  inputs.model.hidden_size = 96, inputs.model.intermediate_size = 160, inputs.model.head_dim = 24;
  const std::vector<Compared> ranks = compare(inputs, 4, /*dry_steps=*/8);
  for (size_t rank = 0; rank < ranks.size(); ++rank) expect_close(ranks[rank], rank);
}

std::vector<ExactMode> modes() {
  return {{},
          {.memory = "resend"},
          {.overlap = "single", .memory = "resend", .recompute = "selective"},
          {.tp = 2},
          {.memory = "resend", .tp = 2, .pp = 2, .micro_batches = 3},
          {.pp = 4, .micro_batches = 3},
          {.servers = 1},
          {.layout = "free"},
          {.memory = "resend", .pp = 2, .micro_batches = 3, .schedule = "1f1b"}};
}

INSTANTIATE_TEST_SUITE_P(Modes, DryRun, ::testing::ValuesIn(modes()),
                         [](const auto& info) { return std::to_string(info.index); });

}  // namespace
}  // namespace distca
