#include "plan/link_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/exchange.h"
#include "plan/report.h"
#include "plan/traffic.h"

namespace distca {
namespace {

/// One long document on rank 0; the other ranks hold short ones.
Layout skewed(int32_t ranks) {
  constexpr int64_t kRows = 8192;
  std::vector<int64_t> lengths = {kRows};
  lengths.insert(lengths.end(), static_cast<size_t>((ranks - 1) * kRows / 512), 512);
  return pack_in_order(lengths, ranks, kRows);
}

PlanOptions options_of_test() {
  PlanOptions options;
  options.bytes = row_bytes({4, 2, 64, 4});
  return options;
}

double total_of(const Plan& plan, const PlanOptions& options, const LinkCost& link) {
  return plan_times(plan, options, link).total(link);
}

TEST(LinkCost, TimesOfAPlanAreThoseOfItsBusiestServerAndPort) {
  // Rows [0, 256) of a document of 512 on rank 0, the rest on rank 1; rank 1 lacks 256 rows of K and V.
  Layout layout;
  layout.doc_lengths = {512};
  layout.ranks = 2;
  layout.rows = 256;
  layout.shards = {{0, {0, 256}, 0, 0}, {0, {256, 512}, 1, 0}};
  PlanOptions options = options_of_test();
  options.policy = Policy::kNone;
  options.ci = {1000, 3000};
  options.speeds = {1, 0.5};
  const Plan plan = make_plan(layout, options).plan;
  const LinkCost link{0.25, 10, true};
  const PlanTimes times = plan_times(plan, options, link);
  const double pairs = 256 * 256 + 256 * 257 / 2;
  EXPECT_EQ(times.compute, 3000 + pairs / 0.5);
  EXPECT_EQ(times.exchange, 2 * 10 + 0.25 * 256 * 2 * (2 * 64 * 4));
  EXPECT_EQ(times.total(link), std::max(times.compute, times.exchange));
  EXPECT_EQ(times.total({0.25, 10, false}), times.compute + times.exchange);
}

TEST(LinkCost, FastLinksChangeNothing) {
  const Layout layout = skewed(4);
  const PlanOptions options = options_of_test();
  const Plan plain = make_plan(layout, options).plan;
  EXPECT_EQ(make_plan(layout, options, {1e-6, 0, true}).plan.digest(), plain.digest());
  EXPECT_EQ(make_plan(layout, options, {0, 0, false}).plan.digest(), plain.digest());
}

TEST(LinkCost, NoPlanEndsLaterThanTheEvenOneOrThanAttentionAtHome) {
  for (const bool hidden : {true, false}) {
    for (const double load_per_byte : {0.3, 1.0, 3.0, 30.0, 300.0, 1e6}) {
      SCOPED_TRACE(::testing::Message() << hidden << ", " << load_per_byte);
      const Layout layout = skewed(4);
      PlanOptions options = options_of_test();
      const LinkCost link{load_per_byte, 0, hidden};
      const Plan chosen = make_plan(layout, options, link).plan;
      chosen.validate();
      const double even = total_of(make_plan(layout, options).plan, options, link);
      options.policy = Policy::kNone;
      const double home = total_of(make_plan(layout, options).plan, options, link);
      options.policy = Policy::kCad;
      EXPECT_LE(total_of(chosen, options, link), std::min(even, home));
    }
  }
}

TEST(LinkCost, BetweenTheTwoAPlanShipsPartAndEndsSooner) {
  const Layout layout = skewed(4);
  PlanOptions options = options_of_test();
  const Plan even = make_plan(layout, options).plan;
  const PlanTimes free = plan_times(even, options, {1, 0, true});
  const LinkCost link{2 * free.compute / free.exchange, 0, true};  // exchanges take twice the compute
  const Plan chosen = make_plan(layout, options, link).plan;
  PlanOptions home = options;
  home.policy = Policy::kNone;
  const double best_of_ends =
      std::min(total_of(even, options, link), total_of(make_plan(layout, home).plan, options, link));
  EXPECT_LT(total_of(chosen, options, link), 0.85 * best_of_ends);
  const Traffic traffic = planned_traffic(chosen, make_exchange(chosen), options.bytes);
  EXPECT_GT(traffic.total(), 0);
}

TEST(LinkCost, AnEmptyLayoutPlansNothing) {
  Layout layout;
  layout.ranks = 3;
  layout.rows = 128;
  EXPECT_TRUE(make_plan(layout, options_of_test(), {1, 1, true}).plan.tasks.empty());
}

}  // namespace
}  // namespace distca
