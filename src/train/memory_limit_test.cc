#include "train/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attend/live_bytes.h"
#include "base/check.h"
#include "comm/threads.h"
#include "train/testing.h"
#include "train/trainer.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// One long document a nano-batch among short ones, so that servers can be given more or fewer K/V rows; what
/// they hold of these is much of what a rank needs.
RunInputs skewed_run() {
  RunInputs inputs = testing::small_run("float32");
  inputs.model.head_dim = 32, inputs.model.num_key_value_heads = 4;
  inputs.config.train.tokens_per_batch = 4096;
  inputs.config.train.steps = 2;
  std::vector<int64_t> lengths;
  for (int i = 0; i < 8; ++i) {
    lengths.push_back(900);
    lengths.insert(lengths.end(), 18, 61);
  }
  inputs.source = testing::random_documents(lengths, inputs.model.vocab_size, 3);
  return inputs;
}

struct Outcome {
  std::vector<int64_t> predicted;
  int64_t kv_row_limit = 0, measured = 0;  // of the rank that needs most
};

Outcome run_with_limit(RunInputs inputs, int64_t limit) {
  enable_live_bytes();
  inputs.config.parallel.memory_limit = limit;
  Outcome out;
  run_thread_ranks(4, {}, [&](Fabric& fabric) {
    LiveBytes& count = new_live_bytes();
    const LiveBytesScope scope(&count);
    RunInputs own = inputs;
    const BatchStream stream(own.source, batch_inputs(own.config));
    const MemoryPlan plan = plan_memory(fabric, own, stream);
    Trainer trainer(fabric, own);
    count.reset_peak();
    for (int64_t step = 0; step < own.config.train.steps; ++step) trainer.step();
    const std::vector<int64_t> peaks = gather_numbers(fabric, count.peak(), "peaks");
    if (fabric.rank() == 0)
      out = {plan.peaks, own.kv_row_limit, *std::max_element(peaks.begin(), peaks.end())};
  });
  return out;
}

int64_t most(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

TEST(MemoryLimit, PlansKeepALimitBelowWhatWouldBeNeeded) {
  const Outcome free = run_with_limit(skewed_run(), 0);
  EXPECT_EQ(free.kv_row_limit, 0);
  const int64_t limit = most(free.predicted) * 97 / 100;
  const Outcome limited = run_with_limit(skewed_run(), limit);
  EXPECT_GT(limited.kv_row_limit, 0);
  EXPECT_LE(most(limited.predicted), limit);
  EXPECT_LE(static_cast<double>(limited.measured), 1.02 * static_cast<double>(limit));
  EXPECT_LT(limited.measured, free.measured);
}

TEST(MemoryLimit, EnoughIsNoLimit) {
  const Outcome free = run_with_limit(skewed_run(), int64_t{1} << 40);
  EXPECT_EQ(free.kv_row_limit, 0);
}

TEST(MemoryLimit, WhatNothingKeepsIsAnErrorThatSaysWhatWouldHelp) {
  try {
    run_with_limit(skewed_run(), 1000000);
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("parallel.memory_limit = 1000000"), HasSubstr("on rank"),
                                    HasSubstr("attention.memory = \"resend\" it would be"),
                                    HasSubstr("parallel.recompute = \"selective\" it would be")));
  }
}

TEST(MemoryReport, BytesAreTexts) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 40), "3 TiB");
  EXPECT_EQ(extremes_text({1024, 4096, 2048}), "4 KiB on rank 1, 1 KiB on rank 0 at the least");
  EXPECT_EQ(extremes_text({1024}), "1 KiB on rank 0");
}

// Documents of one length fill every nano-batch alike, so all steps have one plan.
TEST(SteadyState, AttentionAllocatesNothingAfterTheFirstSteps) {
  for (const int64_t pp : {1, 2}) {
    for (const char* memory : {"keep", "resend"}) {
      RunInputs inputs = testing::small_run("float32");
      inputs.source = testing::random_documents(std::vector<int64_t>(64, 128), inputs.model.vocab_size, 5);
      inputs.config.attention.memory = memory;
      inputs.config.parallel.pp = pp;
      inputs.config.train.micro_batches = 2, inputs.config.train.tokens_per_batch = 2048;
      run_thread_ranks(4, {}, [&](Fabric& fabric) {
        Trainer trainer(fabric, inputs);
        for (int step = 0; step < 2; ++step) trainer.step();
        const int64_t allocations = trainer.attention_allocations();
        EXPECT_GT(allocations, 0);
        for (int step = 0; step < 4; ++step) trainer.step();
        EXPECT_EQ(trainer.attention_allocations(), allocations) << memory << ", " << pp << " stages";
      });
    }
  }
}

}  // namespace
}  // namespace distca
