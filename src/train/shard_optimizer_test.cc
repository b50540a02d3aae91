#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "comm/threads.h"
#include "train/checkpoint.h"
#include "train/testing.h"
#include "train/trainer.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

RunInputs short_run(bool sharded) {
  RunInputs inputs = testing::small_run("float32");
  inputs.config.train.steps = 6;
  inputs.config.parallel.shard_optimizer = sharded;
  return inputs;
}

struct Trained {
  std::vector<double> losses;
  CheckpointTensors tensors;
};

/// `resume` and `save` are folders, or empty.
Trained train(int32_t ranks, const RunInputs& inputs, int64_t steps, const std::string& resume = "",
              const std::string& save = "") {
  Trained out;
  run_thread_ranks(ranks, {}, [&](Fabric& fabric) {
    Trainer trainer(fabric, inputs);
    if (inputs.config.parallel.shard_optimizer) {
      EXPECT_LE(trainer.adam.exp_avg.numel(), trainer.parameters.values.numel() / trainer.grid.dp + 64);
    }
    if (!resume.empty()) load_checkpoint(resume, trainer);
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) losses.push_back(trainer.step().loss);
    CheckpointTensors tensors = gather_checkpoint(trainer);
    if (fabric.rank() > 0) return;
    Config::Checkpoint config;
    config.dir = save;
    if (!save.empty()) save_checkpoint(config, trainer, tensors);
    for (auto* each : {&tensors.weights, &tensors.exp_avg, &tensors.exp_avg_sq})
      for (NamedTensor& tensor : *each) tensor.tensor = tensor.tensor.clone();
    out = {losses, tensors};
  });
  return out;
}

void expect_equal(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  const auto compare = [](const std::vector<NamedTensor>& x, const std::vector<NamedTensor>& y) {
    ASSERT_EQ(x.size(), y.size());
    ASSERT_FALSE(x.empty());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(x[i].tensor.equal(y[i].tensor)) << x[i].name;
  };
  compare(a.tensors.weights, b.tensors.weights);
  compare(a.tensors.exp_avg, b.tensors.exp_avg);
  compare(a.tensors.exp_avg_sq, b.tensors.exp_avg_sq);
}

TEST(ShardedOptimizer, GivesTheBitsOfTheWholeOne) {
  for (const int32_t ranks : {1, 3, 4}) {
    expect_equal(train(ranks, short_run(true), 4), train(ranks, short_run(false), 4));
  }
}

TEST(ShardedOptimizer, GivesTheBitsOfTheWholeOneInStagesAndGroups) {
  RunInputs whole = short_run(false), sharded = short_run(true);
  for (RunInputs* inputs : {&whole, &sharded}) {
    inputs->model.vocab_size = 62;
    inputs->config.parallel.tp = 2, inputs->config.parallel.pp = 2;
  }
  expect_equal(train(8, sharded, 3), train(8, whole, 3));
}

TEST(ShardedOptimizer, CheckpointsGoOnWithOrWithoutItOnAnyNumberOfRanks) {
  const fs::path folder = fs::temp_directory_path() / ("distca_sharded_" + std::to_string(::getpid()));
  train(3, short_run(true), 3, "", folder.string());
  const std::string saved = (folder / "step-00000003").string();
  ASSERT_TRUE(fs::is_directory(saved)) << saved;
  const Trained sharded = train(2, short_run(true), 3, saved), whole = train(2, short_run(false), 3, saved);
  expect_equal(sharded, whole);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace distca
