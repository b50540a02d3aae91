#include "plan/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "plan/distribution.h"
#include "plan/exchange.h"
#include "plan/traffic.h"
#include "plan/validate.h"

namespace distca {
namespace {

double max_over_mean(const std::vector<int64_t>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(loads.size()) / sum;
}

TEST(Policy, NoneComputesQueriesAtHome) {
  const Layout layout = pack_in_order({250, 0, 50}, 3);
  PlanOptions options;
  options.policy = Policy::kNone;
  const Plan plan = make_plan(layout, options).plan;
  plan.validate();
  EXPECT_THAT(plan.tasks,
              testing::ElementsAre(Task{0, {0, 100}, {0, 100}, 0}, Task{0, {100, 200}, {0, 200}, 1},
                                   Task{0, {200, 250}, {0, 250}, 2}, Task{2, {0, 50}, {0, 50}, 2}));
}

TEST(Policy, CadKeepsEveryServerWithinTheTolerance) {
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    for (const int32_t chunks : {1, 2, 7, 16, 64}) {
      for (const uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(format("{} chunks, seed {}", chunks, seed));
        const Layout layout = pack_documents(sample_documents(distribution, chunks, 131072, seed));
        const PlanResult result = make_plan(layout, {});
        result.plan.validate();
        validate(make_exchange(result.plan), result.plan);
        EXPECT_TRUE(result.within_tolerance) << result.shortfalls.front();
        EXPECT_LE(max_over_mean(padded_pairs_of_servers(result.plan)), 1.02);
        EXPECT_LE(max_over_mean(pairs_of_servers(result.plan)), 1.02);
      }
    }
  }
}

TEST(Policy, NamesAreThoseOfTheDocumentation) {
  for (const char* name : {"none", "cad", "wlb", "cp", "cp-seq"})
    EXPECT_EQ(name_of(policy_named(name)), name);
  EXPECT_THROW(policy_named("zigzag"), InputError);
}

TEST(Policy, OptionsThatContradictTheLayoutAreInputErrors) {
  const Layout layout = pack_in_order({250}, 3);
  PlanOptions options;
  options.speeds = {1, 1};
  EXPECT_THROW(make_plan(layout, options), InputError);
  options.speeds = {1, 0, 1};
  EXPECT_THROW(make_plan(layout, options), InputError);
  options.speeds.clear();
  EXPECT_THROW(make_plan(pack_in_order(std::vector<int64_t>(4, 1 << 30), 2), {}), InputError);
}

TEST(Policy, OptionsOutOfRangeAreInputErrorsThatNameThem) {
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::pair<PlanOptions, const char*> wrong[] = {
      {{.tolerance = -1}, "tolerance of -1"},
      {{.tolerance = 1.5}, "between 0 and 1"},
      {{.tolerance = nan}, "tolerance of nan"},
      {{.dedicated = -1}, "-1 dedicated"},
      {{.dedicated = 2'000'000}, "at most 1000000"},
      {{.speeds = {1, infinite, 1}}, "finite"},
      {{.speeds = {1, 1e-300, 1}}, "from 1e-9"},
      {{.ci = {0, infinite, 0}}, "finite"},
      {{.kv_row_limit = -1}, "-1 K/V rows"},
      {{.byte_limit = -1}, "-1 bytes"},
      {{.min_gain = infinite}, "finite"},
      {{.min_gain = -1}, "not negative"},
      {{.search_moves = -1}, "-1 search moves"},
      {{.cp = 0}, "at least 1"},
  };
  for (const auto& [options, words] : wrong) {
    try {
      make_plan(pack_in_order({250}, 3), options);
      ADD_FAILURE() << "no error says " << words;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(words));
    }
  }
}

}  // namespace
}  // namespace distca
