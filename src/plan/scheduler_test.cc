#include "plan/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "plan/coverage.h"
#include "plan/distribution.h"
#include "plan/exchange.h"
#include "plan/finish.h"
#include "plan/random_plan.h"
#include "plan/traffic.h"
#include "plan/validate.h"

namespace distca {
namespace {

int64_t random_length(Random& random) {
  switch (random.between(0, 6)) {
    case 0:
      return random.between(0, 2);
    case 1:
      return 128 * random.between(0, 40);
    case 2:
      return random.between(1, 300);
    case 3:
      return random.between(10000, 60000);
    case 4: {
      const int64_t primes[] = {127, 131, 257, 1021, 4099, 16381, 65537};
      return primes[random.below(std::size(primes))];
    }
    default:
      return random.between(100, 8000);
  }
}

struct Case {
  Layout layout;
  PlanOptions options;
};

Case random_case(Random& random) {
  std::vector<int64_t> lengths;
  for (int64_t count = random.between(0, 30); count > 0; --count) lengths.push_back(random_length(random));
  const auto ranks = static_cast<int32_t>(random.between(1, 20));
  Case c{pack_in_order(lengths, ranks), {}};
  if (random.between(0, 2) == 0)
    c.layout = pack_in_order(lengths, ranks, c.layout.rows + random.between(1, 5000));
  const double tolerances[] = {0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
  c.options.tolerance = tolerances[random.below(std::size(tolerances))];
  c.options.bytes = random.between(0, 1) == 0 ? row_bytes({32, 8, 128, 2}) : row_bytes({64, 8, 128, 2});
  c.options.search_moves = random.between(0, 1) * 200;
  c.options.dedicated = static_cast<int32_t>(std::max<int64_t>(0, random.between(-3, 3)));
  const size_t servers = static_cast<size_t>(ranks + c.options.dedicated);
  const int64_t total =
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0}, [](int64_t sum, int64_t length) {
        return sum + padded_pairs({0, {0, length}, {0, length}, 0});
      });
  if (random.between(0, 2) == 0) {
    for (size_t i = 0; i < servers; ++i) c.options.speeds.push_back(0.5 + 0.5 * random.unit());
  }
  if (random.between(0, 2) == 0) {
    for (size_t i = 0; i < servers; ++i) {
      const bool idle = random.between(0, 2) == 0;
      c.options.ci.push_back(
          idle ? 0 : random.unit() * 3 * static_cast<double>(total) / static_cast<double>(servers));
    }
  }
  return c;
}

/// The load that the finish-time rule lets each server have at `factor` times the best finish, found by
/// bisection.
std::vector<double> allowed_loads(const PlanOptions& options, double total, size_t servers, double factor) {
  const auto load_at = [&](double time, size_t r) {
    const double speed = options.speeds.empty() ? 1 : options.speeds[r];
    return speed * std::max(0.0, time - (options.ci.empty() ? 0 : options.ci[r]));
  };
  double low = 0, high = 1e19;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    double sum = 0;
    for (size_t r = 0; r < servers; ++r) sum += load_at(middle, r);
    (sum < total ? low : high) = middle;
  }
  std::vector<double> loads;
  for (size_t r = 0; r < servers; ++r) loads.push_back(load_at(high * factor, r));
  return loads;
}

TEST(Scheduler, TwoThousandRandomCasesAreCoveredOnceAndEven) {
  int short_of = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Case c = random_case(random);
    const PlanResult result = schedule(c.layout, c.options);
    ASSERT_EQ(coverage::fault_of(result.plan), "");
    ASSERT_NO_THROW(result.plan.validate());
    const Exchange exchange = make_exchange(result.plan);
    ASSERT_NO_THROW(validate(exchange, result.plan));
    ASSERT_EQ(schedule(c.layout, c.options).plan.digest(), result.plan.digest());
    ASSERT_LE(result.cost, result.cost_before_search);

    const std::vector<int64_t> loads = padded_pairs_of_servers(result.plan);
    const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
    const std::vector<double> allowed =
        allowed_loads(c.options, total, loads.size(), 1 + c.options.tolerance);
    std::vector<int64_t> tasks(loads.size(), 0);
    for (const Task& task : result.plan.tasks) ++tasks[static_cast<size_t>(task.server)];
    for (size_t r = 0; r < loads.size(); ++r) {
      // Whatever the tolerance, a server is off by no more than the grid is coarse.
      ASSERT_LE(static_cast<double>(loads[r]), allowed[r] + 128.0 * 128 * static_cast<double>(tasks[r]) + 1)
          << "server " << r;
      if (result.within_tolerance) {
        ASSERT_LE(static_cast<double>(loads[r]), allowed[r] * (1 + 1e-9) + 1) << "server " << r;
      }
    }
    ASSERT_EQ(result.within_tolerance, result.shortfalls.empty());
    short_of += !result.within_tolerance;
  }
  EXPECT_LT(short_of, 1000);
}

double max_over_mean(const std::vector<int64_t>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(loads.size()) / sum;
}

/// Checks that hold for every plan, and returns the padded pairs of its servers.
std::vector<int64_t> checked_loads(const PlanResult& result) {
  EXPECT_EQ(coverage::fault_of(result.plan), "");
  EXPECT_NO_THROW(result.plan.validate());
  EXPECT_NO_THROW(validate(make_exchange(result.plan), result.plan));
  return padded_pairs_of_servers(result.plan);
}

Layout sampled(Distribution distribution, int32_t chunks, uint64_t seed, int64_t tokens = 131072) {
  return pack_documents(sample_documents(distribution, chunks, tokens, seed));
}

TEST(Scheduler, FinishTimesKeepTheRule) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int32_t chunks = 32;
    PlanOptions options;
    options.dedicated = 2;
    const Layout layout = sampled(seed % 2 ? Distribution::kWlbllm : Distribution::kProlong, chunks, seed);
    double total = 0;
    for (const Shard& shard : layout.shards) {
      total += static_cast<double>(padded_pairs({0, shard.tokens, {0, shard.tokens.end}, 0}));
    }
    for (int32_t r = 0; r < chunks + 2; ++r) {
      options.speeds.push_back(0.5 + 0.5 * random.unit());
      options.ci.push_back(r >= chunks || random.between(0, 2) == 0 ? 0 : 3 * random.unit() * total / chunks);
    }
    const std::vector<int64_t> loads = checked_loads(schedule(layout, options));
    const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
    EXPECT_LE(sum, total * 1.0001);
    const std::vector<double> allowed = allowed_loads(options, sum, loads.size(), 1.02);
    for (size_t r = 0; r < loads.size(); ++r) {
      EXPECT_LE(static_cast<double>(loads[r]), allowed[r] + 1) << r;
      if (allowed[r] == 0) {
        EXPECT_EQ(loads[r], 0) << r;
      }
    }
  }
}

TEST(Scheduler, OneHeavyServerAmongMostlyFullOnesIsRelieved) {
  for (const int32_t servers : {16, 64, 256}) {
    SCOPED_TRACE(servers);
    // Documents of 2,304 tokens: one server holds as many pairs in a long one as leaves the others at .95 of
    // the mean.
    const int64_t length = 2304, each = 20;
    const double others = static_cast<double>(each * length * (length + 1) / 2);
    const double heavy = others * (servers / 0.95 - (servers - 1));
    const auto long_one = static_cast<int64_t>(std::sqrt(2 * heavy));
    Documents documents;
    documents.tokens_per_chunk = std::max(each * length, long_one);
    documents.chunks.assign(static_cast<size_t>(servers), std::vector<int64_t>(each, length));
    documents.chunks[static_cast<size_t>(servers / 2)] = {long_one};
    const PlanResult result = schedule(pack_documents(documents), {});
    EXPECT_LE(max_over_mean(checked_loads(result)), 1.02);
    EXPECT_LE(max_over_mean(pairs_of_servers(result.plan)), 1.02);
    EXPECT_TRUE(result.within_tolerance);
  }
}

TEST(Scheduler, LoadsKeepEveryToleranceAndBytesFallWithIt) {
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    const Layout layout = sampled(distribution, 24, 11);
    double before = INFINITY;
    for (const double tolerance : {0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2}) {
      SCOPED_TRACE(tolerance);
      PlanOptions options;
      options.tolerance = tolerance;
      const PlanResult result = schedule(layout, options);
      const std::vector<int64_t> loads = checked_loads(result);
      EXPECT_EQ(result.within_tolerance, max_over_mean(loads) <= 1 + tolerance);
      if (tolerance > 0) {
        EXPECT_LE(max_over_mean(loads), 1 + tolerance);
      }
      if (tolerance >= 0.01) {
        EXPECT_LE(max_over_mean(pairs_of_servers(result.plan)), 1 + tolerance);
      }
      std::vector<int64_t> tasks(loads.size(), 0);
      for (const Task& task : result.plan.tasks) ++tasks[static_cast<size_t>(task.server)];
      const int64_t mean =
          std::accumulate(loads.begin(), loads.end(), int64_t{0}) / static_cast<int64_t>(loads.size());
      for (size_t r = 0; r < loads.size() && tolerance == 0; ++r)
        EXPECT_LE(loads[r], mean + 1 + 128 * 128 * tasks[r]);
      const auto bytes = static_cast<double>(
          planned_traffic(result.plan, make_exchange(result.plan), options.bytes).total());
      EXPECT_LE(bytes, 1.02 * before);
      before = std::min(before, bytes);
    }
  }
}

TEST(Scheduler, OneDocumentOverAllServers) {
  for (const int32_t servers : {2, 7, 16}) {
    const PlanResult result = schedule(pack_in_order({100003}, servers), {});
    EXPECT_LE(max_over_mean(checked_loads(result)), 1.02) << servers;
    EXPECT_TRUE(result.within_tolerance);
  }
}

TEST(Scheduler, ADocumentOfSixteenMillionTokens) {
  const PlanResult result = schedule(pack_in_order({16'777'216}, 16), {});
  EXPECT_LE(max_over_mean(checked_loads(result)), 1.02);
}

TEST(Scheduler, AHundredThousandDocuments) {
  Random random(5);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 100000; ++i)
    lengths.push_back(i % 1000 == 0 ? random.between(30000, 90000) : random.between(0, 500));
  const PlanResult result = schedule(pack_in_order(lengths, 64), {});
  EXPECT_LE(max_over_mean(checked_loads(result)), 1.02);
}

TEST(Scheduler, MoreServersThanTilesIsReportedServerByServer) {
  const PlanResult result = schedule(pack_in_order({200}, 16), {});
  checked_loads(result);
  EXPECT_FALSE(result.within_tolerance);
  EXPECT_THAT(result.shortfalls, testing::Contains(testing::HasSubstr("can't be cut finer than tiles")));
}

TEST(Scheduler, WithoutToleranceAPlanThatIsNotEvenSaysSo) {
  const PlanOptions exact{.tolerance = 0};
  const PlanResult uneven = schedule(pack_documents({{{21, 259, 199}, {10, 2, 51, 301}}, 479}), exact);
  EXPECT_GT(max_over_mean(checked_loads(uneven)), 1);
  EXPECT_FALSE(uneven.within_tolerance);
  EXPECT_THAT(uneven.shortfalls, testing::ElementsAre(testing::HasSubstr("can't be cut finer than tiles")));
  EXPECT_TRUE(schedule(pack_documents({{{256}, {256}}, 256}), exact).within_tolerance);
}

TEST(Scheduler, WithoutToleranceLoadsAreAsEvenAsWithALittle) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<int64_t> lengths;
    const int64_t longest = seed % 2 == 0 ? 600 : 4000;
    for (int64_t count = random.between(20, 60); count > 0; --count)
      lengths.push_back(random.between(1, longest));
    const Layout layout = pack_in_order(lengths, static_cast<int32_t>(random.between(2, 8)));
    PlanOptions options{.search_moves = 500};
    options.tolerance = 0.02;
    const double loose = max_over_mean(checked_loads(schedule(layout, options)));
    options.tolerance = 0;
    EXPECT_LE(max_over_mean(checked_loads(schedule(layout, options))), loose + 0.01);
  }
}

TEST(Scheduler, NothingToDoIsAPlanToo) {
  EXPECT_TRUE(schedule(pack_in_order({}, 4), {}).plan.tasks.empty());
  EXPECT_TRUE(schedule(pack_in_order({0, 0}, 1), {}).within_tolerance);
}

TEST(Scheduler, ARowLimitBindsOrIsNamed) {
  const Layout layout = sampled(Distribution::kWlbllm, 16, 3);
  const PlanResult free = schedule(layout, {});
  const std::vector<int64_t> free_rows = held_kv_rows(free.plan, make_exchange(free.plan));
  const int64_t most = *std::max_element(free_rows.begin(), free_rows.end());
  PlanOptions options;
  options.kv_row_limit = 131072 + (most - 131072) * 3 / 4;
  const PlanResult limited = schedule(layout, options);
  EXPECT_LE(max_over_mean(checked_loads(limited)), 1.02);
  for (const int64_t rows : held_kv_rows(limited.plan, make_exchange(limited.plan)))
    EXPECT_LE(rows, options.kv_row_limit);
  options.kv_row_limit = 131072;
  const PlanResult none_fits = schedule(layout, options);
  EXPECT_FALSE(none_fits.within_tolerance);
  EXPECT_THAT(none_fits.shortfalls.front(), testing::HasSubstr("under 131072 K/V rows"));
  options.kv_row_limit = 1000;
  EXPECT_THROW(schedule(layout, options), InputError);
}

TEST(Scheduler, ALimitOfAQuarterOverTheMeanRowsIsKeptOrSaysWhatItCosts) {
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    for (const int32_t servers : {8, 32, 64}) {
      SCOPED_TRACE(format("{} servers", servers));
      const Layout layout = sampled(distribution, servers, 5);
      const PlanResult free = schedule(layout, {});
      const std::vector<int64_t> held = held_kv_rows(free.plan, make_exchange(free.plan));
      PlanOptions options;
      options.kv_row_limit = 5 * std::accumulate(held.begin(), held.end(), int64_t{0}) / (4 * servers);
      const PlanResult limited = schedule(layout, options);
      for (const int64_t rows : held_kv_rows(limited.plan, make_exchange(limited.plan)))
        EXPECT_LE(rows, options.kv_row_limit);
      const double balance = max_over_mean(checked_loads(limited));
      EXPECT_EQ(limited.shortfalls.empty(), limited.within_tolerance);
      if (limited.within_tolerance) {
        EXPECT_LE(balance, 1.02);
      } else {
        EXPECT_GT(balance, 1.02);
        EXPECT_THAT(limited.shortfalls.front(), testing::HasSubstr("of the best common time"));
        EXPECT_THAT(limited.shortfalls,
                    testing::Contains(testing::HasSubstr(format("{} K/V rows", options.kv_row_limit))));
      }
    }
  }
}

TEST(Scheduler, RandomRowLimitsAreKeptOrNamed) {
  int named = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Case c = random_case(random);
    PlanOptions none;
    none.policy = Policy::kNone;
    const Plan at_home = make_plan(c.layout, none).plan;
    const std::vector<int64_t> held = held_kv_rows(at_home, make_exchange(at_home));
    const bool can_be_kept = seed % 2 == 0;
    c.options.kv_row_limit =
        can_be_kept ? *std::max_element(held.begin(), held.end()) + random.between(1, c.layout.rows)
                    : random.between(1, 3 * c.layout.rows);
    try {
      const PlanResult result = schedule(c.layout, c.options);
      ASSERT_EQ(coverage::fault_of(result.plan), "");
      for (const int64_t rows : held_kv_rows(result.plan, make_exchange(result.plan))) {
        ASSERT_LE(rows, c.options.kv_row_limit);
      }
    } catch (const InputError& error) {
      ++named;
      ASSERT_FALSE(can_be_kept) << error.what();
      ASSERT_THAT(error.what(), testing::HasSubstr(format("the limit is {}", c.options.kv_row_limit)));
    }
  }
  EXPECT_GT(named, 0);
}

int64_t busiest(const Plan& plan, const PlanOptions& options) {
  const Traffic traffic = planned_traffic(plan, make_exchange(plan), options.bytes);
  return std::max(traffic.max_send(), traffic.max_receive());
}

TEST(Scheduler, AByteLimitIsPlannedFor) {
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    const Layout layout = sampled(distribution, 16, 3);
    PlanOptions options;
    const int64_t most = busiest(schedule(layout, options).plan, options);
    int64_t before = 0;
    for (const int64_t percent : {0, 20, 60, 90}) {
      SCOPED_TRACE(percent);
      options.byte_limit = std::max<int64_t>(1, most * percent / 100);
      const PlanResult result = schedule(layout, options);
      checked_loads(result);
      EXPECT_LE(busiest(result.plan, options), options.byte_limit);
      const int64_t moved = planned_traffic(result.plan, make_exchange(result.plan), options.bytes).total();
      EXPECT_GE(moved, before);
      before = moved;
      if (percent > 20) continue;
      EXPECT_FALSE(result.within_tolerance);
      EXPECT_THAT(result.shortfalls.front(), testing::HasSubstr("under the byte limit"));
    }
    EXPECT_GT(before, 0);
  }
}

TEST(Scheduler, AByteLimitThatCannotBeKeptNamesTheServer) {
  PlanOptions options;
  options.byte_limit = 1000;
  try {
    schedule(pack_in_order({50000}, 8), options);  // each rank needs the keys before its own
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("bytes, the limit is 1000"));
  }
}

TEST(Scheduler, MinGainKeepsPoorMovesAtHome) {
  const Layout layout = sampled(Distribution::kProlong, 16, 3);
  PlanOptions options;
  const int64_t all = planned_traffic(schedule(layout, options).plan,
                                      make_exchange(schedule(layout, options).plan), options.bytes)
                          .total();
  options.min_gain = 4;
  const PlanResult some = schedule(layout, options);
  checked_loads(some);
  const int64_t kept = planned_traffic(some.plan, make_exchange(some.plan), options.bytes).total();
  EXPECT_LT(kept, all);
  options.min_gain = 1e9;
  const PlanResult none = schedule(layout, options);
  EXPECT_EQ(planned_traffic(none.plan, make_exchange(none.plan), options.bytes).total(), 0);
  EXPECT_THAT(none.shortfalls.front(), testing::HasSubstr("min_gain"));
}

}  // namespace
}  // namespace distca
