#include "train/plan_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/check.h"
#include "comm/threads.h"
#include "train/testing.h"
#include "train/trainer.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

/// A device on which a pair of positions takes a nanosecond for each of 4 heads of 8, backward twice that; a
/// layer of the preset `tiny` takes a microsecond a token, backward three.
std::string profile_text(const std::string& more = "") {
  const auto grid = [](const char* direction, double factor) {
    std::string seconds;
    for (const double q : {128.0, 65536.0}) {
      std::string row;
      for (const double keys : {128.0, 262144.0}) {
        const double pairs = keys >= q ? q * (keys - (q - 1) / 2) : keys * (keys + 1) / 2;
        row += (row.empty() ? "" : ", ") + std::to_string(4e-9 * factor * pairs);
      }
      seconds += (seconds.empty() ? "[" : ", [") + row + "]";
    }
    return std::string("{\"direction\": \"") + direction +
           "\", \"head_dim\": 8, \"heads\": 4, \"kv_heads\": 2, \"q\": [128, 65536], "
           "\"kv\": [128, 262144], \"seconds\": [" +
           seconds + "]}";
  };
  return "{\"name\": \"test\", \"attention\": [" + grid("forward", 1) + ", " + grid("backward", 2) + "]" +
         more + "}";
}

const char* const kLinear =
    ", \"linear\": {\"model\": \"tiny\", \"tokens\": [100, 200], \"forward_s\": [1e-4, 2e-4], "
    "\"backward_s\": [3e-4, 6e-4]}";
const char* const kLinks =
    ", \"links\": {\"intra\": {\"latency_s\": 1e-6, \"bytes_per_s\": 4e9}, "
    "\"inter\": {\"latency_s\": 2e-6, \"bytes_per_s\": 1e9}}";

std::string write_profile(const std::string& more) {
  const std::string path = ::testing::TempDir() + "/plan_costs_test.json";
  std::ofstream(path) << profile_text(more);
  return path;
}

TEST(PlanCosts, LayersTakeWhatTheProfilesModelTookByWeights) {
  const Profile profile = Profile::parse(profile_text(kLinear), "test");
  const LlamaConfig tiny = find_llama_config("tiny");
  const TaskCost cost(profile.attention({4, 2, 8, 4}, "forward"));
  const StageWork same = stage_work(tiny, profile, cost, 150, 1);
  EXPECT_NEAR(same.per_row_layer, 1e6, 1e-3);
  EXPECT_NEAR(same.backward, 3, 1e-9);
  const double head = static_cast<double>(tiny.vocab_size * tiny.hidden_size);
  EXPECT_NEAR(same.per_row_head, 1e6 * head / static_cast<double>(tiny.layer_parameters()), 1e-3);
  for (const int64_t rows : {50, 4000})
    EXPECT_NEAR(stage_work(tiny, profile, cost, rows, 2).per_row_layer, 5e5, 1e-3);
}

TEST(PlanCosts, AProfileWithoutLayersCountsThemAtTheRateOfAttention) {
  const Profile profile = Profile::parse(profile_text(), "test");
  const LlamaConfig tiny = find_llama_config("tiny");
  const TaskCost cost(profile.attention({4, 2, 8, 4}, "forward"));
  const double of_pair = static_cast<double>(cost.of_tiles(64)) / (64.0 * 128 * 128);
  EXPECT_NEAR(stage_work(tiny, profile, cost, 100, 1).per_row_layer / stage_work(tiny).per_row_layer, of_pair,
              1e-9 * of_pair);
}

TEST(PlanCosts, TheSlowestLinkCounts) {
  const Links links = {{1e-6, 4e9}, {2e-6, 1e9}};
  Config config;
  EXPECT_EQ(slowest_link(config, links, 8).bytes_per_s, 1e9);
  EXPECT_EQ(slowest_link(config, links, 8).latency_s, 2e-6);
  EXPECT_EQ(slowest_link(config, {}, 8).bytes_per_s, 0);
  config.link.bandwidth = 3e9, config.link.latency = 5e-6;
  EXPECT_EQ(slowest_link(config, links, 8).bytes_per_s, 3e9);
  EXPECT_EQ(slowest_link(config, links, 8).latency_s, 5e-6);
  config.link.ranks_per_node = 4, config.link.node_bandwidth = 8e9, config.link.node_latency = 7e-6;
  EXPECT_EQ(slowest_link(config, links, 8).bytes_per_s, 2e9);
  EXPECT_EQ(slowest_link(config, links, 8).latency_s, 7e-6);
  EXPECT_EQ(slowest_link(config, links, 4).bytes_per_s, 3e9);
  config.link.bandwidth = 0;
  EXPECT_EQ(slowest_link(config, links, 8).bytes_per_s, 2e9);
}

TEST(PlanCosts, WhatIsMissingIsSaidInOneLine) {
  const auto error_of = [](const std::string& more, double min_gain,
                           bool with_profile = true) -> std::string {
    RunInputs inputs = testing::small_run("float32");
    if (with_profile) inputs.config.attention.profile = write_profile(more);
    inputs.config.attention.min_gain = min_gain;
    try {
      check_parallel(inputs, 2);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of(kLinks, 1), "");
  EXPECT_THAT(error_of("", 1), HasSubstr("needs a link's bytes per second"));
  EXPECT_THAT(error_of("", 1, false), HasSubstr("attention.min_gain = 1 needs attention.profile"));
  EXPECT_THAT(error_of(", \"linear\": {\"model\": \"nothing\", \"tokens\": [1], \"forward_s\": [1], "
                       "\"backward_s\": [1]}",
                       0),
              HasSubstr("attention.profile: "));
  EXPECT_THAT(error_of(", \"linear\": {\"model\": \"tiny\", \"tokens\": [], \"forward_s\": [], "
                       "\"backward_s\": []}",
                       0),
              HasSubstr("linear: tokens, forward_s and backward_s must be as many"));
  RunInputs inputs = testing::small_run("float32");
  inputs.config.attention.profile = "/nowhere.json";
  EXPECT_THROW(check_parallel(inputs, 2), InputError);
}

// A link that is far too slow leaves every query at home; one that is fast changes nothing but the unit.
TEST(PlanCosts, ASlowLinkMovesLessAndTrainsTheSame) {
  RunInputs inputs = testing::small_run("float64");
  inputs.config.train.steps = 2;
  inputs.config.attention.search = 20;
  inputs.config.attention.profile = write_profile(std::string(kLinear) + kLinks);
  const auto run = [&](double bandwidth, int64_t pp) {
    inputs.config.link.bandwidth = bandwidth;
    inputs.config.parallel.pp = pp;
    inputs.config.attention.memory = pp > 1 ? "resend" : "keep";
    std::pair<int64_t, double> out = {0, 0};
    run_thread_ranks(4, {}, [&](Fabric& fabric) {
      Trainer trainer(fabric, inputs);
      StepMetrics last;
      for (int step = 0; step < 2; ++step) {
        last = trainer.step();
        if (fabric.rank() == 0) out.first += last.bytes;
      }
      if (fabric.rank() == 0) out.second = last.loss;
    });
    return out;
  };
  for (const int64_t pp : {1, 2}) {
    const auto fast = run(1e15, pp), slow = run(1e3, pp);
    EXPECT_GT(fast.first, slow.first) << pp;
    EXPECT_NEAR(fast.second, slow.second, 1e-10 * fast.second) << pp;
  }
}

}  // namespace
}  // namespace distca
