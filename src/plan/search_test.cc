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

TEST(Search, BytesStayNearTheLeastThereCouldBe) {
  // Lengths up to `longest` tokens, evenly or by order of magnitude, on 4 to 16 ranks.
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Documents documents{{}, 65536};
    const int64_t longest = random.between(8192, 65536);
    const bool even = random.between(0, 1) == 0;
    for (int64_t chunks = random.between(4, 16); chunks > 0; --chunks) {
      std::vector<int64_t>& lengths = documents.chunks.emplace_back();
      for (int64_t left = 65536; left > 0; left -= lengths.back()) {
        const int64_t length = even ? random.between(1, longest) : longest >> random.between(0, 8);
        lengths.push_back(std::min(left, length));
      }
    }
    const PlanReport report = report_34b(pack_documents(documents));
    EXPECT_TRUE(report.within_tolerance);
    EXPECT_LE(static_cast<double>(report.traffic.total()), 1.2 * report.best_bound.value());
  }
}

}  // namespace
}  // namespace distca
