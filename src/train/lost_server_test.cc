// Dedicated servers that die, at every kind of moment: the losses stay those of the dense model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sanitizer.h"
#include "comm/testing.h"
#include "comm/threads.h"
#include "train/checkpoint.h"
#include "train/exact_modes.h"
#include "train/run.h"
#include "train/survivors.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ExactMode;
using ::testing::HasSubstr;

/// A rank dies in the first operation of a step whose name holds `operation`.
struct Death {
  int32_t rank = 0;
  int64_t step = 0;
  std::string operation;
};

struct Outcome {
  std::vector<Json> lines;  // of metrics
  std::string said, error;
};

/// What stands at every rank's operations.
testing::BeforeOperation dies_by(int32_t rank, const std::vector<Death>& deaths) {
  auto step = std::make_shared<int64_t>(0);
  return [=](const std::string& operation) {
    for (const Death& death : deaths) {
      if (death.rank == rank && death.step == *step && operation.find(death.operation) != std::string::npos)
        throw std::runtime_error("killed in " + operation);
    }
    *step += operation == "whether to stop";
  };
}

FabricOptions options_for(const RunInputs& inputs, int32_t ranks) {
  FabricOptions options{.timeout_s = 60};
  const RankGrid grid = grid_of(inputs.config, ranks);
  options.can_lose = [grid](const std::vector<int32_t>& lost) { return can_go_on_without(grid, lost); };
  return options;
}

/// A run of four steps; `before` makes what stands at a rank's operations.
Outcome run(RunInputs inputs, int32_t ranks,
            const std::function<testing::BeforeOperation(int32_t rank, RunInputs& inputs)>& before,
            FabricOptions options) {
  std::string folder = (std::filesystem::temp_directory_path() / "lost_server_XXXXXX").string();
  DISTCA_CHECK(::mkdtemp(folder.data()) != nullptr, "no temporary folder");
  inputs.config.train.metrics = folder + "/metrics.jsonl";
  Outcome outcome;
  ::testing::internal::CaptureStderr();
  try {
    run_thread_ranks(ranks, options, [&](Fabric& fabric) {
      RunInputs own = inputs;
      const auto watched = testing::watched_fabric(fabric, before(fabric.rank(), own));
      run_training(*watched, own);
    });
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  outcome.said = ::testing::internal::GetCapturedStderr();
  if (std::filesystem::exists(inputs.config.train.metrics)) {
    std::istringstream in(read_text(inputs.config.train.metrics));
    for (std::string line; std::getline(in, line);) outcome.lines.push_back(Json::parse(line));
  }
  std::filesystem::remove_all(folder);
  return outcome;
}

Outcome run(const RunInputs& inputs, int32_t ranks, const std::vector<Death>& deaths) {
  return run(
      inputs, ranks, [&](int32_t rank, RunInputs&) { return dies_by(rank, deaths); },
      options_for(inputs, ranks));
}

RunInputs four_steps(const ExactMode& mode) {
  RunInputs inputs = testing::exact_run(mode, "float64");
  inputs.model.num_hidden_layers = 2;
  inputs.config.train.steps = 4;
  return inputs;
}

const std::vector<double>& dense_losses(const RunInputs& inputs) {
  static std::map<int64_t, std::vector<double>> made;
  std::vector<double>& losses = made[inputs.config.train.micro_batches];
  if (losses.empty()) losses = testing::run_dense(inputs).losses;
  return losses;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

void expect_losses(const Outcome& outcome, const std::vector<double>& losses) {
  EXPECT_EQ(outcome.error, "");
  ASSERT_EQ(outcome.lines.size(), losses.size()) << outcome.said;
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_EQ(outcome.lines[step]["step"], step);
    EXPECT_LE(std::abs(outcome.lines[step]["loss"].get<double>() - losses[step]), 1e-10) << "step " << step;
  }
}

void expect_dense(const Outcome& outcome, const RunInputs& inputs) {
  expect_losses(outcome, dense_losses(inputs));
}

/// Runs the mode with `ranks` and one death; the warning names rank and step, and the step is redone.
void expect_goes_on(ExactMode mode, int32_t ranks, const Death& death) {
  SCOPED_TRACE(mode.name() + ": rank " + std::to_string(death.rank) + " dies in " + death.operation);
  const RunInputs inputs = four_steps(mode);
  const Outcome outcome = run(inputs, ranks, {death});
  expect_dense(outcome, inputs);
  EXPECT_EQ(count(outcome.said, "a dedicated server was lost"), 1) << outcome.said;
  EXPECT_THAT(outcome.said, HasSubstr(format("a dedicated server was lost in step {} (rank {}: killed in ",
                                             death.step, death.rank)));
  ASSERT_EQ(outcome.lines.size(), 4U);
  const int64_t servers = mode.servers * mode.tp;
  for (int64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(outcome.lines[step]["redone"], step == death.step ? 1 : 0);
    EXPECT_EQ(outcome.lines[step]["servers"], step < death.step ? servers : servers - 1);
  }
}

TEST(LostServer, InDispatch) {
  expect_goes_on({"pingpong", "keep", 1, 1, 2}, 4, {3, 1, "dispatch of"});
  expect_goes_on({"single", "resend", 1, 1, 2}, 4, {2, 2, "wait for dispatch of"});
}
TEST(LostServer, InCollect) {
  expect_goes_on({"pingpong", "resend", 1, 1, 2}, 4, {2, 1, "collect of"});
}
TEST(LostServer, InBackward) {
  expect_goes_on({"pingpong", "keep", 1, 1, 2}, 4, {3, 1, "backward collect"});
  expect_goes_on({"single", "keep", 1, 1, 2}, 4, {2, 2, "wait for backward dispatch"});
}
TEST(LostServer, InTensorParallel) {
  expect_goes_on({"pingpong", "keep", 2, 1, 2}, 6, {4, 1, "dispatch of"});
  expect_goes_on({"single", "resend", 2, 1, 2}, 6, {3, 2, "backward collect"});
}
TEST(LostServer, InAPipeline) {
  expect_goes_on({"pingpong", "resend", 1, 2, 2, "fixed", 3}, 4, {3, 1, "collect of"});
  expect_goes_on({"pingpong", "keep", 1, 2, 2, "fixed", 3}, 4, {2, 2, "backward dispatch"});
}
TEST(LostServer, InATensorParallelPipeline) {
  expect_goes_on({"pingpong", "keep", 2, 2, 2}, 8, {7, 1, "wait for collect of"});
}
TEST(LostServer, InTheFirstStep) {
  expect_goes_on({"pingpong", "keep", 1, 1, 2}, 4, {3, 0, "comparison of plans"});
}
TEST(LostServer, InTheSumOfLosses) {
  expect_goes_on({"pingpong", "keep", 1, 1, 2}, 4, {3, 1, "sum of losses"});
  expect_goes_on({"pingpong", "keep", 1, 1, 2}, 4, {3, 1, "longest wait"});
}

TEST(LostServer, AtTheEndOfAStepOrBetweenTwo) {
  for (const bool shard : {false, true}) {
    for (const char* operation : {"time of the step", "compute of the step", "whether to stop"}) {
      for (const int64_t step : {1, 3}) {
        if (kSanitized && shard != (step == 1)) continue;
        SCOPED_TRACE(::testing::Message() << operation << " in step " << step << ", shard " << shard);
        RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 2});
        inputs.config.parallel.shard_optimizer = shard;
        const Outcome outcome = run(inputs, 4, {{2, step, operation}});
        expect_dense(outcome, inputs);
        EXPECT_EQ(count(outcome.said, "a dedicated server was lost"), 1) << outcome.said;
        EXPECT_THAT(outcome.said, HasSubstr("rank 2: killed in "));
      }
    }
  }
}

TEST(LostServer, WhilePlanning) {
  const RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 2});
  const auto before = [&](int32_t rank, RunInputs& own) {
    auto armed = std::make_shared<std::atomic<bool>>(false);
    if (rank != 3) return testing::BeforeOperation([](const std::string&) {});
    own.source.length = [armed, length = own.source.length](int64_t doc) {
      if (*armed) throw std::runtime_error("the disk is gone");
      return length(doc);
    };
    return testing::BeforeOperation(
        [armed](const std::string& operation) { *armed = *armed || operation == "whether to stop"; });
  };
  const Outcome outcome = run(inputs, 4, before, options_for(inputs, 4));
  expect_dense(outcome, inputs);
  EXPECT_THAT(outcome.said, HasSubstr("(rank 3: the disk is gone)"));
}

TEST(LostServer, OneAfterTheOther) {
  const RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 3});
  const Outcome outcome = run(inputs, 5, {{4, 1, "collect of"}, {3, 2, "backward dispatch"}});
  expect_dense(outcome, inputs);
  EXPECT_THAT(outcome.said,
              AllOf(HasSubstr("lost in step 1 (rank 4: "), HasSubstr("lost in step 2 (rank 3: ")));
  EXPECT_EQ(outcome.lines.at(3)["servers"], 1);
}

TEST(LostServer, OneForEachTensorParallelIndex) {
  const RunInputs inputs = four_steps({"pingpong", "resend", 2, 1, 2});
  const Outcome outcome = run(inputs, 6, {{2, 1, "dispatch of"}, {5, 2, "backward collect"}});
  expect_dense(outcome, inputs);
  EXPECT_EQ(count(outcome.said, "a dedicated server was lost"), 2) << outcome.said;
}

TEST(LostServer, AnotherWhileTheRestAgree) {
  const RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 3});
  for (const char* operation :
       {"agreement on who is left", "where ranks stand", "the data-parallel groups", "what is settled"}) {
    SCOPED_TRACE(operation);
    // The groups are made at the start, too: only after the first death it is rank 3's turn.
    auto first = std::make_shared<std::atomic<bool>>(false);
    const auto before = [&](int32_t rank, RunInputs&) -> testing::BeforeOperation {
      const auto dies = dies_by(rank, {{4, 1, "collect of"}});
      return [=](const std::string& at) {
        if (rank == 3 && *first && at == operation) throw std::runtime_error("killed in " + at);
        try {
          dies(at);
        } catch (...) {
          *first = true;
          throw;
        }
      };
    };
    const Outcome outcome = run(inputs, 5, before, options_for(inputs, 5));
    expect_dense(outcome, inputs);
    EXPECT_THAT(outcome.said, AllOf(HasSubstr("(rank 4: killed in "), HasSubstr("(rank 3: killed in ")));
  }
}

std::vector<double> speeds_in(const Outcome& outcome, size_t step) {
  return outcome.lines.at(step).value("speeds", std::vector<double>());
}

TEST(LostServer, ThoseLeftKeepTheSpeedsThatAreGiven) {
  RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 3});
  inputs.config.parallel.speeds.given = {1, 0.5, 2, 0.25, 4};
  const Outcome outcome = run(inputs, 5, {{2, 1, "collect of"}, {4, 2, "backward dispatch"}});
  expect_dense(outcome, inputs);
  EXPECT_THAT(speeds_in(outcome, 0), ElementsAre(1, 0.5, 2, 0.25, 4));
  EXPECT_THAT(speeds_in(outcome, 1), ElementsAre(1, 0.5, 0.25, 4));
  EXPECT_THAT(speeds_in(outcome, 3), ElementsAre(1, 0.5, 0.25));
}

TEST(LostServer, ThoseLeftOfEachTensorParallelIndexKeepTheSpeedsThatAreGiven) {
  RunInputs inputs = four_steps({"pingpong", "resend", 2, 1, 2});
  // Of servers, and of ranks: the slower of two counts. Rank 2 is of index 0, rank 5 of index 1.
  const std::vector<double> of_servers = {1, 0.5, 0.25}, of_ranks = {1, 1, 2, 0.5, 0.25, 1};
  for (const std::vector<double>& given : {of_servers, of_ranks}) {
    inputs.config.parallel.speeds.given = given;
    const Outcome outcome = run(inputs, 6, {{2, 1, "dispatch of"}, {5, 2, "backward collect"}});
    expect_dense(outcome, inputs);
    EXPECT_THAT(speeds_in(outcome, 0), ElementsAre(1, 0.5, 0.25));
    EXPECT_THAT(speeds_in(outcome, 3), ElementsAre(1, 0.25));
  }
}

/// In steps, and while what was measured is compared, when some ranks have counted the step and others not.
TEST(LostServer, ThoseLeftGoOnWithTheSpeedsThatWereMeasured) {
  for (const int32_t tp : kSanitized ? std::vector{2} : std::vector{1, 2}) {
    RunInputs inputs = four_steps({"pingpong", "keep", tp, 1, 2});
    inputs.config.train.steps = 8;
    const std::vector<double> dense = testing::run_dense(inputs).losses;
    inputs.config.parallel.speeds.measured = true;
    const int32_t ranks = tp == 1 ? 4 : 6;  // rank 2 is the first server
    const FabricOptions options = options_for(inputs, ranks);
    for (const Death& death :
         {Death{2, 1, "collect of"}, Death{2, 5, "backward dispatch"}, Death{2, 2, "loads of the step"},
          Death{2, 2, "seconds of attention"}, Death{2, 5, "time of the step"}}) {
      SCOPED_TRACE(::testing::Message() << "tp " << tp << ": dies in " << death.operation);
      const auto before = [&](int32_t rank, RunInputs&) { return dies_by(rank, {death}); };
      const Outcome outcome = run(inputs, ranks, before, options);
      expect_losses(outcome, dense);
      EXPECT_EQ(count(outcome.said, "a dedicated server was lost"), 1) << outcome.said;
      const size_t left = speeds_in(outcome, 7).size();
      EXPECT_TRUE(left == 0 || left == static_cast<size_t>(ranks / tp - 1)) << left;
    }
  }
}

TEST(LostServer, TheLastOneEndsTheRunWithItsMessage) {
  const RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 1});
  const Outcome outcome = run(inputs, 3, {{2, 1, "collect of"}});
  EXPECT_THAT(outcome.error, HasSubstr("rank 2: killed in collect of"));
  EXPECT_EQ(outcome.lines.size(), 1U);
  const RunInputs two = four_steps({"pingpong", "keep", 1, 1, 2});
  EXPECT_THAT(run(two, 4, {{2, 1, "collect of"}, {3, 2, "dispatch of"}}).error,
              HasSubstr("rank 3: killed in dispatch of"));
}

TEST(LostServer, ARankThatHoldsTheModelEndsTheRunWithItsMessage) {
  const RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 2});
  EXPECT_THAT(run(inputs, 4, {{1, 1, "collect of"}}).error, HasSubstr("rank 1: killed in collect of"));
}

/// Over links, where what is under way ends at different times on different ranks.
TEST(LostServer, AtRandomMomentsUnderAVirtualClock) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < (kSanitized ? 3 : 8); ++i) {
    RunInputs inputs = four_steps({i % 2 ? "pingpong" : "single", i % 4 < 2 ? "keep" : "resend", 1, 1, 2});
    inputs.config.parallel.shard_optimizer = i % 3 == 0;
    FabricOptions options = options_for(inputs, 4);
    options.link.clock = LinkOptions::Clock::kVirtual;
    options.link.latency = 1e-4;
    options.link.bandwidth = 1e8;
    const int64_t at = static_cast<int64_t>(random() % 300);
    SCOPED_TRACE(::testing::Message() << "operation " << at);
    const auto before = [&](int32_t rank, RunInputs&) {
      auto started = std::make_shared<bool>(false);
      auto operations = std::make_shared<int64_t>(0);
      return testing::BeforeOperation([=](const std::string& operation) {
        if (rank == 2 && *started && (*operations)++ == at)
          throw std::runtime_error("killed in " + operation);
        *started = *started || operation == "start of the run";
      });
    };
    expect_dense(run(inputs, 4, before, options), inputs);
  }
}

/// An update that one rank has begun is done by all, and by none twice; one that nobody has begun is done
/// after the step was done again.
TEST(LostServer, NoUpdateIsDoneTwiceOrLeftOut) {
  for (const bool begun : {false, true}) {
    for (const bool shard : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "begun " << begun << ", shard " << shard);
      RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 2});
      inputs.config.parallel.shard_optimizer = shard;
      run_thread_ranks(4, options_for(inputs, 4), [&](Fabric& world) {
        Trainer trainer(world, inputs);
        std::vector<double> losses;
        losses.push_back(trainer.step().loss);
        StepMetrics second = trainer.forward_backward();
        world.barrier("gradients are there");
        if (world.rank() == 3) throw std::runtime_error("killed");
        try {
          if (world.rank() == 0 && begun) trainer.update(second);
          world.barrier("with rank 3");
          ADD_FAILURE() << "rank 3 is gone";
        } catch (const RankLost&) {
        }
        trainer.go_on(world.survivors("who is left").fabric);
        EXPECT_EQ(trainer.next_step(), begun ? 2 : 1);
        if (begun) losses.push_back(second.loss);
        while (trainer.next_step() < 4) losses.push_back(trainer.step().loss);
        for (size_t step = 0; step < 4; ++step)
          EXPECT_LE(std::abs(losses[step] - dense_losses(inputs)[step]), 1e-10) << "step " << step;
      });
    }
  }
}

TEST(LostServer, CheckpointsAndTracesOfARunThatLostOneAreWhole) {
  std::string folder = (std::filesystem::temp_directory_path() / "lost_server_XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  RunInputs inputs = four_steps({"pingpong", "keep", 1, 1, 2});
  inputs.config.checkpoint.dir = folder + "/checkpoints";
  inputs.config.checkpoint.every = 1;
  inputs.config.checkpoint.keep = 100;
  inputs.trace.path = folder + "/trace.json";
  inputs.trace.first = 1, inputs.trace.last = 3;
  // The server isn't in the gathering: it dies in the step after, while rank 0 writes.
  expect_dense(run(inputs, 4, {{2, 2, "comparison of plans"}}), inputs);
  for (const char* step : {"1", "2", "3", "4"})
    EXPECT_TRUE(std::filesystem::exists(checkpoint_folder(inputs.config.checkpoint, std::atoi(step))))
        << step;
  const Json trace = Json::parse(read_text(folder + "/trace.json"));
  std::set<int64_t> pids;
  for (const Json& event : trace["traceEvents"]) pids.insert(event["pid"].get<int64_t>());
  EXPECT_EQ(pids, (std::set<int64_t>{0, 1, 3}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace distca
