#include "attend/shipment.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>

#include "attend/testing.h"
#include "comm/threads.h"
#include "plan/random_plan.h"

namespace distca {
namespace {

const AttentionShape kShape = {4, 2, 16, .25, kNoWindow};

/// Calls body(runtime, tables, rows of this rank) on every rank of a random plan.
template <typename Body>
Plan run_random_plan(uint64_t seed, const FabricOptions& options, const Body& body) {
  Random random(seed);
  const Layout layout = pack_in_order({700, 300, 80, 1}, 3);
  const Plan plan = random_plan(random, layout, 0);
  run_thread_ranks(plan.servers, options, [&](Fabric& fabric) {
    AttentionRuntime runtime(fabric);
    body(runtime, prepare(runtime, plan), testing::dense_rows(layout, fabric.rank()));
  });
  return plan;
}

TEST(Shipment, SignalsComputeOnTheRowsThatCameLast) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const testing::DenseTensors dense = testing::random_inputs(1081, kShape, at::kDouble, seed),
                              other = testing::random_inputs(1081, kShape, at::kDouble, seed + 1);
  std::atomic<int64_t> moved = 0, stale_ranks = 0;
  run_random_plan(seed, {}, [&](AttentionRuntime& runtime, const BatchTables& tables, const auto& rows) {
    const auto run = [&](const testing::DenseTensors& in) {
      return run_layer(runtime, tables, kShape, in, rows);
    };
    const testing::HomeTensors exact = run(dense);
    const int64_t exact_bytes = runtime.stats.total_bytes();
    runtime.signal = std::make_unique<SignalRows>();
    run(dense);
    EXPECT_EQ(runtime.stats.total_bytes(), 2 * exact_bytes);
    runtime.signal->sends_rows = false;
    const testing::HomeTensors signalled = run(dense);
    for (const auto& [a, b] : {std::pair(exact.o, signalled.o), std::pair(exact.lse, signalled.lse),
                               std::pair(exact.dq, signalled.dq), std::pair(exact.dk, signalled.dk),
                               std::pair(exact.dv, signalled.dv)}) {
      EXPECT_TRUE(at::equal(a, b)) << "the rows that came last are those of the same inputs";
    }
    const int64_t bytes = runtime.stats.total_bytes() - 2 * exact_bytes;
    EXPECT_EQ(bytes, runtime.stats.bytes("signal"));
    EXPECT_LE(bytes, 4 * 2) << "a byte for each of two peers in each of four exchanges";
    const testing::HomeTensors stale = run(other);
    runtime.signal = nullptr;
    const testing::HomeTensors fresh = run(other);
    moved += exact_bytes;
    stale_ranks += !at::equal(stale.dq, fresh.dq);
    EXPECT_TRUE(std::isfinite(stale.dq.sum().template item<double>()));
  });
  EXPECT_EQ(moved > 0, stale_ranks > 0);
}

TEST(Shipment, SpansTellWhatARankDidWhen) {
  FabricOptions options;
  options.link.clock = LinkOptions::Clock::kVirtual;
  options.link.latency = 1;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const testing::DenseTensors dense = testing::random_inputs(1081, kShape, at::kFloat, seed);
  std::atomic<int64_t> exchanges = 0, with_latency = 0;
  run_random_plan(seed, options, [&](AttentionRuntime& runtime, const BatchTables& tables, const auto& rows) {
    SpanLog spans([&] { return runtime.fabric.now(); });
    runtime.spans = &spans;
    run_layer(runtime, tables, kShape, dense, rows);
    EXPECT_TRUE(spans.spans().empty());
    spans.start();
    spans.place = {.layer = 5, .nano_batch = 1, .phase = "forward"};
    const int64_t bytes_before = runtime.stats.total_bytes();
    const double wait_before = runtime.stats.wait_s, begin = runtime.fabric.now();
    run_layer(runtime, tables, kShape, dense, rows);
    const double end = runtime.fabric.now();
    int64_t bytes = 0, attends = 0;
    double busy_until = begin, wait = 0, first_attend = 0, first_wait = 0;
    const RankTables& forward = *tables.forward;
    const bool apart = !forward.local_tasks.empty() && !forward.other_tasks.empty();
    for (const WorkSpan& span : spans.spans()) {
      EXPECT_EQ(span.place.layer, 5);
      EXPECT_LE(span.begin, span.end);
      EXPECT_GE(span.begin, begin);
      EXPECT_LE(span.end, end);
      if (span.kind == WorkKind::kCommunication) {
        bytes += span.bytes;
        if (span.end - span.begin >= 0.9) ++with_latency;  // else this rank got nothing
        ++exchanges;
        EXPECT_NE(span.peer, runtime.fabric.rank());
        continue;
      }
      EXPECT_GE(span.begin, busy_until) << "a rank does one thing at a time";
      busy_until = span.end;
      if (span.kind == WorkKind::kAttention && attends++ == 0) first_attend = span.begin;
      if (span.kind == WorkKind::kWait && first_wait == 0) first_wait = span.end;
      wait += span.kind == WorkKind::kWait ? span.end - span.begin : 0;
    }
    EXPECT_EQ(attends, apart ? 4 : 3);  // forward once or twice, δ, backward
    if (apart) EXPECT_LT(first_attend, first_wait) << "its own tasks need nothing from others";
    EXPECT_EQ(bytes, runtime.stats.total_bytes() - bytes_before);
    EXPECT_NEAR(wait, runtime.stats.wait_s - wait_before, 1e-12);
  });
  EXPECT_EQ(exchanges > 0, with_latency > 0);
}

}  // namespace
}  // namespace distca
