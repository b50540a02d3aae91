#include "plan/search.h"

#include <gtest/gtest.h>

#include "plan/distribution.h"
#include "plan/report.h"

namespace distca {
namespace {

PlanReport report_34b(const Layout& layout) {
  PlanOptions options;
  options.bytes = row_bytes({64, 8, 128, 2});
  PlanResult result;
  return plan_and_report(layout, options, result);
}

TEST(Search, BytesComeBeforeTheBusiestServerFarAboveTheBound) {
  // Relieving the busiest server would cost 1.205 of the bound here.
  const PlanReport report =
      report_34b(pack_documents(sample_documents(Distribution::kWlbllm, 16, 131072, 3)));
  EXPECT_TRUE(report.within_tolerance);
  EXPECT_LE(static_cast<double>(report.traffic.total()), 1.19 * report.lower_bound.value());
}

}  // namespace
}  // namespace distca
