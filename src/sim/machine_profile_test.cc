#include "sim/machine_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/json.h"
#include "sim/step_costs.h"

namespace distca {
namespace {

const ModelShape kModel = {"some", 128, 2, 8, 2, 64, 448, 256, false};

/// Tasks of the formula: `of_pair` seconds a pair and `of_row` a row, three times as much backward.
Json measured(double of_pair, double of_row) {
  Json grids = Json::array();
  for (const char* direction : {"forward", "backward"}) {
    const double times = direction[0] == 'b' ? 3 : 1;
    Json seconds = Json::array();
    for (const double q : {128.0, 512.0, 1024.0}) {
      Json row = Json::array();
      for (const double kv : {128.0, 512.0, 4096.0})
        row.push_back(times * q * ((kv >= q ? kv - (q - 1) / 2 : kv * (kv + 1) / 2 / q) * of_pair + of_row));
      seconds.push_back(row);
    }
    grids.push_back({{"direction", direction},
                     {"head_dim", 64},
                     {"heads", 8},
                     {"kv_heads", 2},
                     {"q", {128, 512, 1024}},
                     {"kv", {128, 512, 4096}},
                     {"seconds", seconds}});
  }
  const Json link = {{"latency_s", 1e-5}, {"bytes_per_s", 2e9}};
  return {
      {"name", "a machine"},
      {"source", "a test"},
      {"attention", grids},
      {"linear",
       {{"model", "some"}, {"tokens", {256, 1024}}, {"forward_s", {0.25, 1.0}}, {"backward_s", {0.5, 1.8}}}},
      {"links", {{"intra", link}, {"inter", link}}}};
}

DeviceProfile profile_of(const Json& json, int64_t weights, int64_t rows) {
  return machine_profile(Profile::parse(json.dump(), "p.json"), kModel, weights, rows);
}

TEST(MachineProfile, CostsAreThoseThatWereMeasured) {
  const DeviceProfile profile = profile_of(measured(2e-9, 3e-7), kModel.layer_parameters(), 1024);
  const StepCosts costs = step_costs(kModel, profile, 1, 1, Recompute::kNone);
  EXPECT_NEAR(costs.attention_forward, 2e-9, 1e-13);
  EXPECT_NEAR(profile.fit.attention_startup_keys, 150, 0.1);
  EXPECT_NEAR(costs.attention_backward / costs.attention_forward, 3, 1e-9);
  const double head = 256.0 * 128 / 2 / static_cast<double>(kModel.layer_parameters());
  EXPECT_NEAR(costs.linear_forward * 1024, 1 + head, 1e-9);
  EXPECT_NEAR(costs.linear_backward / costs.linear_forward, 1.8, 1e-9);
  EXPECT_EQ(profile.inter.bytes_per_second, 2e9);
  EXPECT_EQ(costs.update, 0);
}

TEST(MachineProfile, LayersOfAnotherModelCountByWeightsAndOtherChunksByTokens) {
  const Json json = measured(2e-9, 0);
  const double one =
      step_costs(kModel, profile_of(json, kModel.layer_parameters(), 1024), 1, 1, Recompute::kNone)
          .linear_forward;
  const auto of = [&](int64_t weights, int64_t rows) {
    return step_costs(kModel, profile_of(json, weights, rows), 1, 1, Recompute::kNone).linear_forward / one;
  };
  EXPECT_NEAR(of(2 * kModel.layer_parameters(), 1024), 0.5, 1e-9);
  EXPECT_NEAR(of(kModel.layer_parameters(), 100000), 1, 1e-9);
  EXPECT_NEAR(of(kModel.layer_parameters(), 64), 1, 1e-9);  // .25 s for 256 tokens is the same rate
}

TEST(MachineProfile, AGridThatNoFormulaFitsStillGivesPositiveCosts) {
  Json json = measured(2e-9, 0);
  json["attention"][0]["seconds"] = {{1.0, 1.0, 1.0}, {1.0, 1.0, 1.0}, {1.0, 1.0, 1e-3}};
  const DeviceProfile profile = profile_of(json, kModel.layer_parameters(), 1024);
  EXPECT_GT(profile.fit.attention_flops, 0);
  EXPECT_GE(profile.fit.attention_startup_keys, 0);
}

TEST(MachineProfile, WithoutLayersOrTheHeadDimensionThereIsNone) {
  Json json = measured(2e-9, 0);
  json.erase("linear");
  EXPECT_THROW(profile_of(json, 1, 1024), InputError);
  json = measured(2e-9, 0);
  json["attention"][0]["head_dim"] = 128, json["attention"][1]["head_dim"] = 128;
  EXPECT_THROW(profile_of(json, 1, 1024), InputError);
}

}  // namespace
}  // namespace distca
