// A dozen named ways to split a run, against the dense model; `make test-exact` goes through all.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/sanitizer.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

using testing::Distance;
using testing::ExactMode;
using testing::RunResult;

const RunResult& dense_run(const ExactMode& mode, const RunInputs& inputs) {
  static std::map<std::string, RunResult> made;
  const int32_t groups = mode.policy == "wlb" ? mode.ranks() / mode.cp : 0;
  const std::string key = format("{} {} {} {}", inputs.config.model.dtype, mode.micro_batches,
                                 inputs.model.tie_word_embeddings, groups);
  if (!made.count(key)) made[key] = testing::run_dense(inputs, groups);
  return made[key];
}

/// In float64, and 20 steps in float32.
void expect_dense(const ExactMode& mode, bool tied = false,
                  const std::vector<const char*>& dtypes = {"float64", "float32"}) {
  SCOPED_TRACE(mode.name());
  for (const char* dtype : dtypes) {
    const bool wide = std::string(dtype) == "float64";
    RunInputs inputs = testing::exact_run(mode, dtype);
    inputs.model.tie_word_embeddings = tied;
    if (!wide) inputs.config.train.steps = kSanitized ? 2 : 20;
    if (wide && kSanitized) inputs.config.train.steps = 1;
    const Distance off =
        testing::distance(testing::run_on_threads(mode.ranks(), inputs), dense_run(mode, inputs));
    EXPECT_LE(off.loss, wide ? 1e-10 : 5e-6) << dtype;
    EXPECT_LE(off.gradient, wide ? 1e-11 : 1e-5) << dtype;
  }
}

TEST(Exactness, DocumentsOfTheRunsLieOverThreeRanks) {
  const ExactMode mode;
  const RunInputs inputs = testing::exact_run(mode, "float64");
  BatchStream stream(inputs.source, batch_inputs(inputs.config));
  int64_t longest = 0;
  for (int64_t step = 0; step < inputs.config.train.steps; ++step) {
    const GlobalBatch batch = stream.next();
    for (const NanoBatch& nano_batch : batch.nano_batches)
      for (const int64_t length : nano_batch.lengths()) longest = std::max(longest, length);
  }
  EXPECT_GT(longest, 2 * 1024 / 4);
}

TEST(Exactness, DataParallelWithFreeLayout) {
  expect_dense({"pingpong", "keep", 1, 1, 0, "free", 1});
}
TEST(Exactness, TensorParallel) {
  expect_dense({"pingpong", "keep", 2, 1, 0, "fixed", 1});
}
TEST(Exactness, TensorParallelResends) {
  expect_dense({"single", "resend", 2, 1, 0, "free", 1});
}
TEST(Exactness, PipelineResends) {
  expect_dense({"pingpong", "resend", 1, 2, 0, "fixed", 3});
}
TEST(Exactness, PipelineKeeps) {
  expect_dense({"pingpong", "keep", 1, 4, 0, "fixed", 3});
}
TEST(Exactness, PipelineWithFreeLayout) {
  expect_dense({"single", "resend", 1, 4, 0, "free", 1});
}
TEST(Exactness, DedicatedServer) {
  expect_dense({"pingpong", "keep", 1, 1, 1, "fixed", 1});
}
TEST(Exactness, DedicatedServerResends) {
  expect_dense({"single", "resend", 1, 1, 1, "free", 1});
}
TEST(Exactness, PipelineWithServer) {
  expect_dense({"pingpong", "keep", 1, 2, 1, "fixed", 3});
}
TEST(Exactness, EverythingAtOnce) {
  expect_dense({"pingpong", "resend", 2, 2, 1, "free", 1});
}
TEST(Exactness, SelectiveRecomputation) {
  expect_dense({"pingpong", "keep", 2, 2, 0, "fixed", 1, "selective"});
}
TEST(Exactness, OneForwardOneBackward) {
  expect_dense({"pingpong", "keep", 1, 4, 0, "fixed", 3, "none", "1f1b"});
}
TEST(Exactness, UnevenStages) {
  expect_dense({"pingpong", "keep", 1, 2, 0, "fixed", 3, "none", "same_phase", {1, 3}});
  expect_dense({"pingpong", "resend", 1, 2, 1, "fixed", 1, "selective", "same_phase", {3, 1}});
}
TEST(Exactness, Baselines) {
  ExactMode mode{"pingpong", "keep", 1, 1, 0, "fixed", 1};
  mode.cp = 4;
  for (const char* policy : {"wlb", "cp", "cp-seq"}) {
    mode.policy = policy;
    expect_dense(mode, /*tied=*/false, {"float64"});
  }
}
TEST(Exactness, TiedEmbeddingsOverStagesAndTensorParallel) {
  expect_dense({"pingpong", "keep", 2, 2, 0, "fixed", 1}, /*tied=*/true);
}

}  // namespace
}  // namespace distca
