#include "plan/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/distribution.h"
#include "plan/picture.h"

namespace distca {
namespace {

TEST(Report, CountsWhatAHandMadeCaseHas) {
  // Two ranks, a document each; rank 0 has four times the attention of rank 1.
  PlanOptions options;
  options.policy = Policy::kNone;
  options.bytes = {8, 1, 1, 8, 1};
  PlanResult result;
  const PlanReport report = plan_and_report(pack_documents({{{1024}, {512}}, 1024}), options, result);
  EXPECT_NEAR(report.pairs_max_over_mean, 2 * 1024 * 1025.0 / (1024 * 1025 + 512 * 513), 1e-12);
  EXPECT_NEAR(report.min_over_mean, 2 * 512 * 513.0 / (1024 * 1025 + 512 * 513), 1e-12);
  EXPECT_NEAR(report.tokens_max_over_mean, 1024 / 768.0, 1e-12);
  EXPECT_EQ(report.token_deviation, 256);
  EXPECT_EQ(report.traffic.total(), 0);
  EXPECT_EQ(report.tasks, 2);
  EXPECT_EQ(report.moved_tasks, 0);
  EXPECT_FALSE(report.within_tolerance);
  EXPECT_FALSE(report.finish_max_over_best.has_value());
  EXPECT_FALSE(report.lower_bound.has_value());
}

TEST(Report, CadMovesTasksAtMoreThanTheLowerBound) {
  PlanResult result;
  const Layout layout = pack_documents(sample_documents(Distribution::kWlbllm, 8, 131072, 9));
  const PlanReport report = plan_and_report(layout, {}, result);
  EXPECT_TRUE(report.within_tolerance);
  EXPECT_GT(report.moved_tasks, 0);
  EXPECT_GE(static_cast<double>(report.traffic.total()), 0.95 * report.lower_bound.value());
  const std::string picture = plan_picture(report, make_exchange(result.plan), {8, 1, 1, 8, 1});
  EXPECT_THAT(picture, testing::StartsWith("<svg"));
  EXPECT_THAT(picture, testing::HasSubstr("server 7 as planned"));
  EXPECT_THAT(picture, testing::HasSubstr(" sends to "));
}

TEST(Report, FinishIsToldWhereServersDiffer) {
  PlanOptions options;
  options.speeds = {1, 0.5, 1, 1, 1};
  options.ci = {0, 0, 1e10, 0, 0};
  options.dedicated = 1;
  PlanResult result;
  const PlanReport report = plan_and_report(
      pack_documents(sample_documents(Distribution::kProlong, 4, 131072, 9)), options, result);
  EXPECT_LE(report.finish_max_over_best.value(), 1.02);
  EXPECT_GE(report.finish_max_over_best.value(), 1);
}

}  // namespace
}  // namespace distca
