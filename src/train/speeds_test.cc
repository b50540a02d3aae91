#include "train/speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/check.h"
#include "comm/threads.h"
#include "train/checkpoint.h"
#include "train/testing.h"
#include "train/trainer.h"

namespace distca {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const SpeedSetting kMeasured{{}, true};

TEST(Speeds, GivenOnesAreOfRanksOrOfServersWhoseSlowestRankCounts) {
  const RankGrid grid{2, 1, 2, 1};  // 3 servers of 2 ranks
  const SpeedSetting of_ranks{{1, 2, 3, 0.5, 1, 1}, false}, of_servers{{1, 0.5, 1}, false};
  for (const SpeedSetting& setting : {of_ranks, of_servers}) {
    check_speeds(setting, grid);
    EXPECT_THAT(ServerSpeeds(setting, grid).next(), ElementsAre(1, 0.5, 1));
    EXPECT_THAT(ServerSpeeds(setting, grid).after_next(), ElementsAre(1, 0.5, 1));
  }
  EXPECT_THAT(ServerSpeeds({{1, 1, 1}, false}, grid).next(), IsEmpty());
  try {
    check_speeds({{1, 1, 1, 1}, false}, grid);
    FAIL() << "four speeds were taken for three servers of two ranks";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "parallel.speeds has 4 numbers: give one a rank (6) or one an attention server (3)");
  }
}

TEST(Speeds, ASlowServerIsNoticedAndCountsTwoStepsLater) {
  ServerSpeeds speeds(kMeasured, {4, 1, 1, 0});
  const std::vector<double> loads = {10, 12, 8, 10}, seconds = {1, 1.2, 0.8, 2};  // rates 10, 10, 10, 5
  for (int step = 0; step < 2; ++step) {
    speeds.add_step(loads, seconds);
    EXPECT_THAT(speeds.after_next(), IsEmpty());
  }
  speeds.add_step(loads, seconds);
  EXPECT_THAT(speeds.next(), IsEmpty()) << "the next step's plans are made already";
  // 10 / 8.75 and 5 / 8.75, rounded to twentieths.
  const auto noticed = ElementsAre(DoubleEq(1.15), DoubleEq(1.15), DoubleEq(1.15), DoubleEq(0.55));
  EXPECT_THAT(speeds.after_next(), noticed);
  speeds.add_step(loads, seconds);
  EXPECT_THAT(speeds.next(), noticed);
}

TEST(Speeds, EqualServersStayEqualDespiteNoise) {
  ServerSpeeds speeds(kMeasured, {4, 1, 1, 0});
  for (int step = 0; step < 30; ++step) {
    std::vector<double> seconds;
    for (int i = 0; i < 4; ++i) seconds.push_back(1 + 0.07 * std::sin(7 * step + 2 * i));
    speeds.add_step(std::vector<double>{1, 1, 1, 1}, seconds);
    EXPECT_THAT(speeds.after_next(), IsEmpty());
  }
}

TEST(Speeds, AServerThatDoesNothingKeepsItsSpeed) {
  ServerSpeeds speeds(kMeasured, {2, 1, 1, 0});
  for (int step = 0; step < 60; ++step) speeds.add_step(std::vector<double>{4, 0}, std::vector<double>{1, 0});
  EXPECT_THAT(speeds.after_next(), IsEmpty());
  for (int step = 0; step < 60; ++step) speeds.add_step(std::vector<double>{0, 0}, std::vector<double>{0, 0});
  EXPECT_THAT(speeds.after_next(), IsEmpty());
}

TEST(Speeds, AStateGoesOnWhereItWas) {
  const RankGrid grid{2, 1, 1, 0};
  ServerSpeeds one(kMeasured, grid);
  const auto step = [](ServerSpeeds& speeds, int number) {
    speeds.add_step(std::vector<double>{3, 3}, std::vector<double>{1 + number / 7.0, 2 + 1 / (1.0 + number)});
  };
  for (int number = 0; number < 7; ++number) {
    ServerSpeeds other(kMeasured, grid);
    other.restore(one.dump(), "state");
    EXPECT_EQ(other.dump(), one.dump());
    for (int later = number; later < number + 5; ++later) {
      ServerSpeeds again(kMeasured, grid);
      again.restore(other.dump(), "state");
      step(other, later), step(again, later);
      EXPECT_EQ(other.next(), again.next());
      EXPECT_EQ(other.after_next(), again.after_next());
    }
    step(one, number);
  }
  ServerSpeeds three(kMeasured, {3, 1, 1, 0});
  three.restore(one.dump(), "state");
  EXPECT_THAT(three.next(), IsEmpty()) << "speeds of two servers are none of three";
  EXPECT_THROW(three.restore("{}", "state"), InputError);
  EXPECT_THROW(three.restore("[", "state"), InputError);
}

/// Steps of enough attention that what it takes can be measured.
RunInputs measurable_run() {
  RunInputs inputs = testing::small_run("float32");
  inputs.config.train.tokens_per_batch = 8192;
  inputs.config.train.steps = 6;
  inputs.config.parallel.speeds.measured = true;
  inputs.source = testing::random_documents({1500, 3000, 700, 2100, 900, 4000, 1200}, 61, 5);
  return inputs;
}

FabricOptions virtual_clocks() {
  FabricOptions options;
  options.link.clock = LinkOptions::Clock::kVirtual;
  return options;
}

TEST(Speeds, ASlowRankIsPlannedLess) {
  RunInputs inputs = measurable_run();
  std::vector<double> speeds;
  std::map<int32_t, std::vector<double>> loads;  // by rank, a step
  std::mutex mutex;
  run_thread_ranks(3, virtual_clocks(), {1, 1, 0.4}, [&](Fabric& fabric) {
    Trainer trainer(fabric, inputs);
    for (int64_t step = 0; step < inputs.config.train.steps; ++step) {
      const StepMetrics metrics = trainer.step();
      const std::lock_guard lock(mutex);
      if (fabric.rank() == 0) speeds = metrics.speeds;
      loads[fabric.rank()].push_back(trainer.own_load());
    }
  });
  ASSERT_EQ(speeds.size(), 3U);
  EXPECT_LT(speeds[2] / speeds[0], 0.75);
  EXPECT_GT(speeds[2] / speeds[0], 0.15);
  const auto share = [&](size_t step) {
    return loads[2][step] / (loads[0][step] + loads[1][step] + loads[2][step]);
  };
  EXPECT_NEAR(share(0), 1.0 / 3, 0.05);
  // Its layers are as slow, so less than its share of the speeds.
  EXPECT_LT(share(5), speeds[2] / (speeds[0] + speeds[1] + speeds[2]) + 0.03);
}

TEST(Speeds, AResumedRunHasThePlansOfOneThatDidNotStop) {
  RunInputs inputs = measurable_run();
  const std::string dir = ::testing::TempDir() + "/speeds_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  inputs.config.checkpoint.dir = dir;
  // What was measured before the checkpoint decides the two steps after it.
  std::vector<StepMetrics> whole, resumed;
  std::string folder;
  const auto run = [&](bool resume, std::vector<StepMetrics>& steps) {
    run_thread_ranks(2, virtual_clocks(), {1, 0.4}, [&](Fabric& fabric) {
      Trainer trainer(fabric, inputs);
      if (resume) load_checkpoint(folder, trainer);
      while (trainer.next_step() < inputs.config.train.steps) {
        const StepMetrics metrics = trainer.step();
        if (fabric.rank() == 0) steps.push_back(metrics);
        if (resume || trainer.next_step() != 4) continue;
        const CheckpointTensors tensors = gather_checkpoint(trainer);
        if (fabric.rank() == 0) folder = save_checkpoint(inputs.config.checkpoint, trainer, tensors);
      }
    });
  };
  run(false, whole);
  run(true, resumed);
  ASSERT_EQ(whole.size(), 6U);
  ASSERT_EQ(resumed.size(), 2U);
  EXPECT_FALSE(whole[5].speeds.empty());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(resumed[i].speeds, whole[4 + i].speeds);
    EXPECT_EQ(resumed[i].digest, whole[4 + i].digest);
    EXPECT_EQ(resumed[i].loss, whole[4 + i].loss);
  }
}

TEST(Speeds, TheyAreRefusedWhereNothingGoesByThem) {
  RunInputs inputs = measurable_run();
  inputs.config.attention.policy = "none";
  try {
    check_parallel(inputs, 2);
    FAIL() << "speeds were taken";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parallel.speeds: with attention.policy = \"none\""));
  }
}

}  // namespace
}  // namespace distca
