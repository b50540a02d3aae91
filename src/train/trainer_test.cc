#include "train/trainer.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/check.h"
#include "base/sanitizer.h"
#include "comm/threads.h"
#include "train/exact_modes.h"
#include "train/rank_rows.h"
#include "train/testing.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using testing::RunResult;

struct Tolerance {
  double loss, gradient;  // the gradient's is of each parameter's norm
};
constexpr Tolerance kFloat64 = {1e-10, 1e-11}, kFloat32 = {5e-6, 1e-5};

void expect_equal(const RunResult& run, const RunResult& dense, Tolerance tolerance) {
  for (const NamedTensor& gradient : dense.gradients)
    EXPECT_GT(gradient.tensor.norm().item<double>(), 0) << gradient.name;
  const testing::Distance distance = testing::distance(run, dense);
  EXPECT_LE(distance.loss, tolerance.loss);
  EXPECT_LE(distance.gradient, tolerance.gradient);
}

/// Twenty steps, under a sanitizer four.
RunInputs run_of(const std::string& dtype) {
  RunInputs inputs = testing::small_run(dtype);
  if (kSanitized) inputs.config.train.steps = 4;
  return inputs;
}

/// The dense model's run, made once for each type.
const RunResult& dense_run(const std::string& dtype) {
  static std::map<std::string, RunResult> made;
  if (!made.count(dtype)) made[dtype] = testing::run_dense(run_of(dtype));
  return made[dtype];
}

void expect_dense(const std::string& dtype, Tolerance tolerance, int32_t ranks, const std::string& policy,
                  const std::string& memory, const std::string& overlap = "pingpong") {
  SCOPED_TRACE(::testing::Message() << dtype << ", " << ranks << " ranks, " << policy << ", " << memory
                                    << ", " << overlap);
  RunInputs inputs = run_of(dtype);
  inputs.config.attention.policy = policy;
  inputs.config.attention.memory = memory;
  inputs.config.attention.overlap = overlap;
  expect_equal(testing::run_on_threads(ranks, inputs), dense_run(dtype), tolerance);
}

TEST(Trainer, BatchesOfTheExactnessRunsHoldEveryUglyCase) {
  const RunInputs inputs = testing::small_run("float64");
  BatchStream stream(inputs.source, batch_inputs(inputs.config));
  bool three_ranks = false, one_token = false, empty_rank = false;
  for (int64_t step = 0; step < inputs.config.train.steps; ++step) {
    const GlobalBatch batch = stream.next();
    for (const NanoBatch& nano_batch : batch.nano_batches) {
      const Layout layout = layout_of(nano_batch, batch.rows, 4);
      std::map<int32_t, std::set<int32_t>> homes;
      for (const Shard& shard : layout.shards) homes[shard.doc].insert(shard.home);
      for (const auto& [doc, ranks] : homes) three_ranks = three_ranks || ranks.size() >= 3;
      for (const int64_t length : layout.doc_lengths) one_token = one_token || length == 1;
      for (const int64_t tokens : layout.tokens_of_ranks()) empty_rank = empty_rank || tokens == 0;
    }
  }
  EXPECT_TRUE(three_ranks && one_token && empty_rank) << three_ranks << one_token << empty_rank;
}

TEST(Trainer, OneRankIsTheDenseModel) {
  expect_dense("float64", kFloat64, 1, "none", "keep");
  expect_dense("float32", kFloat32, 1, "none", "keep");
}

TEST(Trainer, FourRanksThatKeepAreTheDenseModel) {
  expect_dense("float64", kFloat64, 4, "cad", "keep");
  expect_dense("float32", kFloat32, 4, "cad", "keep");
}

TEST(Trainer, FourRanksThatResendAreTheDenseModel) {
  expect_dense("float64", kFloat64, 4, "cad", "resend");
  expect_dense("float32", kFloat32, 4, "cad", "resend");
}

TEST(Trainer, ThreeRanksAreTheDenseModel) {
  expect_dense("float64", kFloat64, 3, "cad", "keep");
  expect_dense("float32", kFloat32, 3, "cad", "keep");
}

TEST(Trainer, OrderOfNanoBatchesDoesNotMatter) {
  expect_dense("float64", kFloat64, 4, "cad", "keep", "single");
  expect_dense("float64", kFloat64, 2, "none", "resend", "single");
}

TEST(Trainer, MicroBatchesAndMoreNanoBatchesAreTheDenseModel) {
  RunInputs inputs = testing::small_run("float64");
  inputs.config.train.tokens_per_batch = 3 * 3 * 520;
  inputs.config.train.micro_batches = 3;
  inputs.config.train.nano_batches = 3;
  inputs.config.train.steps = 3;
  expect_equal(testing::run_on_threads(4, inputs), testing::run_dense(inputs), kFloat64);
}

TEST(Trainer, TheSameRunTwiceGivesTheSameBits) {
  const RunInputs inputs = testing::small_run("float32");
  const RunResult a = testing::run_on_threads(3, inputs), b = testing::run_on_threads(3, inputs);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(testing::distance(a, b).gradient, 0);
}

TEST(Trainer, BatchesWithoutTargetsHaveLossZeroAndLeaveNormalBitsBehind) {
  RunInputs inputs = testing::small_run("float32");
  inputs.source = testing::random_documents(std::vector<int64_t>(2000, 1), inputs.model.vocab_size, 3);
  inputs.config.train.steps = 2;
  const RunResult run = testing::run_on_threads(2, inputs);
  EXPECT_THAT(run.losses, ::testing::ElementsAre(0, 0));
  for (const NamedTensor& gradient : run.gradients) EXPECT_EQ(gradient.tensor.norm().item<double>(), 0);
}

TEST(Trainer, PackedByWorkloadTokensAndPaddingAreTheRowsThatRanksHold) {
  RunInputs inputs = testing::small_run("float32");
  inputs.config.attention.policy = "wlb";
  inputs.config.parallel.cp = 2;
  run_thread_ranks(4, {}, [&](Fabric& fabric) {
    Trainer trainer(fabric, inputs);
    for (int step = 0; step < 6; ++step) {
      const StepMetrics metrics = trainer.step();
      EXPECT_GE(metrics.padding, 0) << "step " << step;
      EXPECT_EQ((metrics.tokens + metrics.padding) % 4, 0) << "step " << step;
    }
  });
}

TEST(Trainer, MetricsCountTokensTargetsPaddingAndBytes) {
  const RunInputs inputs = testing::small_run("float32");
  BatchStream stream(inputs.source, batch_inputs(inputs.config));
  const GlobalBatch batch = stream.next();
  run_thread_ranks(4, {}, [&](Fabric& fabric) {
    Trainer trainer(fabric, inputs);
    const StepMetrics metrics = trainer.step();
    EXPECT_EQ(metrics.step, 0);
    EXPECT_EQ(metrics.tokens + metrics.padding, 1024);
    EXPECT_EQ(metrics.targets, batch.targets());
    EXPECT_GT(metrics.bytes, 0);
    EXPECT_GT(metrics.load_max_over_mean_none, metrics.load_max_over_mean);
    EXPECT_GE(metrics.load_max_over_mean, 1);
    EXPECT_DOUBLE_EQ(metrics.lr, 1e-2 / 3);
  });
}

TEST(Trainer, ALossThatIsNotANumberNamesStepAndDocuments) {
  const RunInputs inputs = testing::small_run("float32");
  try {
    run_thread_ranks(2, {}, [&](Fabric& fabric) {
      Trainer trainer(fabric, inputs);
      trainer.step();
      trainer.parameters.values.fill_(std::numeric_limits<float>::quiet_NaN());
      trainer.step();
    });
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 1: the loss is nan, in documents "));
  }
}

TEST(Trainer, ChunksOfFewerThan128RowsAreRefused) {
  const RunInputs inputs = testing::small_run("float32");
  EXPECT_NO_THROW(check_run(inputs, 4));
  try {
    check_run(inputs, 5);
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("train.tokens_per_batch = 1024 leaves 102 rows of a nano-batch to "
                                        "each of 5 data-parallel ranks"));
  }
}

TEST(Trainer, ATokenBeyondTheVocabularyStopsTheRunByName) {
  RunInputs inputs = testing::small_run("float32");
  inputs.source = testing::random_documents({300, 300, 300}, 1000, 3);
  EXPECT_THROW(testing::run_on_threads(2, inputs), InputError);
}

}  // namespace
}  // namespace distca
