#include "attend/core_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "attend/recording_device.h"
#include "attend/testing.h"
#include "base/check.h"
#include "comm/threads.h"
#include "plan/random_plan.h"

namespace distca {
namespace {

using testing::DenseTensors;
using testing::HomeTensors;

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<double>(head_dim)), kNoWindow};
}

struct Case {
  AttentionShape shape = shape_of(4, 1, 16);
  at::ScalarType dtype = at::kDouble;
  AttentionMemory memory = AttentionMemory::kResend;
  std::string kernel = "reference";
  bool on_cpu = true;  // or on the recording device
};

// Every rank's results of one random plan.
std::vector<HomeTensors> run_case(const Case& test, const Plan& plan, const DenseTensors& dense) {
  std::vector<HomeTensors> results(plan.servers);
  run_thread_ranks(plan.servers, {}, [&](Fabric& fabric) {
    const at::Device device = test.on_cpu ? at::kCPU : testing::recording_device(fabric.rank());
    AttentionRuntime runtime(fabric, {test.kernel, 1, test.memory}, device);
    results[fabric.rank()] = run_layer(runtime, prepare(runtime, plan), test.shape, dense,
                                       testing::dense_rows(plan.layout, fabric.rank()));
  });
  return results;
}

void expect_exact(const Case& test, const Plan& plan, uint64_t seed, double forward_bound,
                  double backward_bound) {
  DenseTensors dense = testing::random_inputs(plan.layout.tokens(), test.shape, test.dtype, seed);
  testing::dense_attention(plan.layout.doc_lengths, test.shape, dense);
  const auto results = run_case(test, plan, dense);
  for (int32_t rank = 0; rank < plan.layout.ranks; ++rank) {
    const auto rows = testing::dense_rows(plan.layout, rank);
    const HomeTensors& home = results[rank];
    EXPECT_LE(testing::relative_error(home.o, dense.o, rows), forward_bound) << "O of rank " << rank;
    EXPECT_LE(testing::relative_error(home.lse, dense.lse, rows), forward_bound) << "LSE of rank " << rank;
    EXPECT_LE(testing::relative_error(home.dq, dense.dq, rows), backward_bound) << "dQ of rank " << rank;
    EXPECT_LE(testing::relative_error(home.dk, dense.dk, rows), backward_bound) << "dK of rank " << rank;
    EXPECT_LE(testing::relative_error(home.dv, dense.dv, rows), backward_bound) << "dV of rank " << rank;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] >= 0) continue;
      EXPECT_EQ(home.o[i].abs().max().item<double>(), 0) << "padding row " << i << " of rank " << rank;
      EXPECT_EQ(home.dk[i].abs().max().item<double>(), 0) << "padding row " << i << " of rank " << rank;
    }
  }
}

TEST(CoreAttention, EqualsPyTorchPerDocumentOnRandomBatchesAndPlans) {
  const uint64_t base = std::random_device{}();
  const int64_t groups[][2] = {{1, 1}, {4, 1}, {8, 1}, {8, 2}, {3, 3}};
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t seed = base + i;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Case test;
    const auto& group = groups[random.between(0, std::size(groups) - 1)];
    test.shape = shape_of(group[0], group[1], random.between(1, 2) * 8);
    test.memory = random.between(0, 1) == 0 ? AttentionMemory::kKeep : AttentionMemory::kResend;
    const Layout layout = random_layout(random, 16, 700);
    expect_exact(test, random_plan(random, layout), seed, 1e-12, 1e-11);
  }
}

TEST(CoreAttention, EqualsPyTorchOnUglyLayouts) {
  struct Ugly {
    const char* name;
    std::vector<int64_t> doc_lengths;
    int32_t ranks;
    int64_t rows;
  };
  const Ugly cases[] = {
      {"a document over three ranks", {100, 700, 64}, 4, 256},
      {"one document over all ranks", {16 * 61}, 16, 0},
      {"one-token and empty documents", {1, 0, 1, 0, 0, 1, 257, 0}, 3, 0},
      {"prime lengths", {131, 257, 389, 521}, 5, 0},
      {"ranks that hold nothing", {200}, 6, 128},
      {"more ranks than documents", {300, 301}, 7, 0},
      {"no token at all", {0, 0}, 3, 0},
  };
  for (const Ugly& ugly : cases) {
    for (const AttentionMemory memory : {AttentionMemory::kKeep, AttentionMemory::kResend}) {
      SCOPED_TRACE(ugly.name);
      Random random(7);
      Case test;
      test.memory = memory;
      const Layout layout = pack_in_order(ugly.doc_lengths, ugly.ranks, ugly.rows);
      expect_exact(test, random_plan(random, layout), 11, 1e-12, 1e-11);
    }
  }
}

TEST(CoreAttention, EqualsPyTorchOnADeviceThatIsNotTheCpu) {
  const uint64_t base = std::random_device{}();
  for (uint64_t seed = base; seed < base + 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Case test;
    test.kernel = "plain";
    test.on_cpu = false;
    test.memory = seed % 2 == 0 ? AttentionMemory::kKeep : AttentionMemory::kResend;
    const Layout layout = random_layout(random, 8, 500);
    expect_exact(test, random_plan(random, layout), seed, 1e-12, 1e-11);
  }
}

TEST(CoreAttention, GivesTheSameBitsTwice) {
  Random random(3);
  Case test;
  test.dtype = at::kFloat;
  test.kernel = "cpu";
  const Layout layout = pack_in_order({700, 1, 300, 129}, 4);
  const Plan plan = random_plan(random, layout, 0);
  const DenseTensors dense = testing::random_inputs(layout.tokens(), test.shape, test.dtype, 5);
  const auto one = run_case(test, plan, dense), two = run_case(test, plan, dense);
  for (int32_t rank = 0; rank < layout.ranks; ++rank) {
    EXPECT_TRUE(at::equal(one[rank].o, two[rank].o)) << rank;
    EXPECT_TRUE(at::equal(one[rank].dq, two[rank].dq)) << rank;
    EXPECT_TRUE(at::equal(one[rank].dk, two[rank].dk)) << rank;
    EXPECT_TRUE(at::equal(one[rank].dv, two[rank].dv)) << rank;
  }
}

TEST(CoreAttention, Float32OnTheCpuKernelStaysWithinItsBound) {
  const uint64_t base = std::random_device{}();
  for (uint64_t seed = base; seed < base + 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Case test;
    test.dtype = at::kFloat;
    test.kernel = "cpu";
    test.shape = shape_of(8, 2, 64);
    const Layout layout = pack_in_order({900, 1, 250, 0, 613}, 5);
    const Plan plan = random_plan(random, layout, 0);
    // The reference in float64 on the same float32 inputs.
    DenseTensors dense = testing::random_inputs(layout.tokens(), test.shape, at::kFloat, seed), exact = dense;
    for (at::Tensor* x : {&exact.q, &exact.k, &exact.v, &exact.dout}) *x = x->to(at::kDouble);
    testing::dense_attention(layout.doc_lengths, test.shape, exact);
    const auto results = run_case(test, plan, dense);
    for (int32_t rank = 0; rank < layout.ranks; ++rank) {
      const auto rows = testing::dense_rows(layout, rank);
      EXPECT_LE(testing::relative_error(results[rank].o.to(at::kDouble), exact.o, rows), 5e-6);
      EXPECT_LE(testing::relative_error(results[rank].lse.to(at::kDouble), exact.lse, rows), 5e-6);
      EXPECT_LE(testing::relative_error(results[rank].dq.to(at::kDouble), exact.dq, rows), 5e-6);
      EXPECT_LE(testing::relative_error(results[rank].dk.to(at::kDouble), exact.dk, rows), 5e-6);
      EXPECT_LE(testing::relative_error(results[rank].dv.to(at::kDouble), exact.dv, rows), 5e-6);
    }
  }
}

TEST(CoreAttention, BackwardMayRunByAnotherPlan) {
  Random random(17);
  Case test;
  const Layout layout = pack_in_order({700, 129, 300}, 4);
  const Plan forward = random_plan(random, layout, 0), backward = random_plan(random, layout, 0);
  DenseTensors dense = testing::random_inputs(layout.tokens(), test.shape, at::kDouble, 1);
  testing::dense_attention(layout.doc_lengths, test.shape, dense);
  run_thread_ranks(4, {}, [&](Fabric& fabric) {
    AttentionRuntime runtime(fabric, {"reference", 1, AttentionMemory::kResend});
    const BatchTables tables = {prepare(runtime, forward).forward, prepare(runtime, backward).backward};
    const auto rows = testing::dense_rows(layout, fabric.rank());
    const AttentionShape& shape = test.shape;
    // A dedicated server has no graph of its own to differentiate, so every rank runs the steps by hand.
    AttentionCall call(runtime, tables, shape, "layer 0", true);
    call.dispatch_begin(testing::home_rows(dense.q, rows), testing::home_rows(dense.k, rows),
                        testing::home_rows(dense.v, rows));
    call.dispatch_end(), call.attend(), call.collect_begin();
    const at::Tensor o = call.collect_end();
    call.grad_collect_begin(testing::home_rows(dense.dout, rows));
    call.grad_collect_end(), call.grad_attend(), call.grad_dispatch_begin();
    const auto [dq, dk, dv] = call.grad_dispatch_end();
    DISTCA_CHECK(testing::relative_error(o, dense.o, rows) <= 1e-12, "O is wrong");
    DISTCA_CHECK(testing::relative_error(dq, dense.dq, rows) <= 1e-11, "dQ is wrong");
    DISTCA_CHECK(testing::relative_error(dk, dense.dk, rows) <= 1e-11, "dK is wrong");
    DISTCA_CHECK(testing::relative_error(dv, dense.dv, rows) <= 1e-11, "dV is wrong");
    AttentionRuntime keeps(fabric, {"reference", 1, AttentionMemory::kKeep});
    EXPECT_THROW(AttentionCall(keeps, tables, shape, "layer 0", true), Error);
  });
}

TEST(CoreAttention, RanksWithDifferentPlansStopWithBothDigests) {
  Random random(1);
  const Layout layout = pack_in_order({700, 300}, 3);
  const Plan one = random_plan(random, layout, 0), two = random_plan(random, layout, 0);
  ASSERT_NE(one.digest(), two.digest());
  try {
    run_thread_ranks(3, {}, [&](Fabric& fabric) {
      AttentionRuntime runtime(fabric);
      prepare(runtime, fabric.rank() == 1 ? two : one);
    });
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    char first[17], second[17];
    std::snprintf(first, sizeof first, "%016llx", static_cast<unsigned long long>(one.digest()));
    std::snprintf(second, sizeof second, "%016llx", static_cast<unsigned long long>(two.digest()));
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr(first), ::testing::HasSubstr(second)));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(CoreAttention, AllocatesNothingOnceItsBuffersAreThere) {
  Random random(1);
  const Layout layout = pack_in_order({700, 300, 80}, 3);
  const Plan plan = random_plan(random, layout, 0);
  const AttentionShape shape = shape_of(4, 2, 16);
  const DenseTensors dense = testing::random_inputs(layout.tokens(), shape, at::kFloat, 1);
  run_thread_ranks(3, {}, [&](Fabric& fabric) {
    AttentionRuntime runtime(fabric);
    const BatchTables tables = prepare(runtime, plan);
    const auto rows = testing::dense_rows(layout, fabric.rank());
    for (int i = 0; i < 2; ++i) run_layer(runtime, tables, shape, dense, rows);
    const int64_t allocations = runtime.pool.allocations();
    for (int i = 0; i < 3; ++i) run_layer(runtime, tables, shape, dense, rows);
    DISTCA_CHECK(runtime.pool.allocations() == allocations, "{} allocations in a steady step",
                 runtime.pool.allocations() - allocations);
  });
}

TEST(CoreAttention, WrongInputIsNamed) {
  Random random(1);
  const Layout layout = pack_in_order({300}, 1);
  const Plan plan = random_plan(random, layout, 0);
  run_thread_ranks(1, {}, [&](Fabric& fabric) {
    AttentionRuntime runtime(fabric);
    const BatchTables tables = prepare(runtime, plan);
    const AttentionShape shape = shape_of(4, 2, 16);
    const DenseTensors dense = testing::random_inputs(299, shape, at::kFloat, 1);
    EXPECT_THROW(core_attention(runtime, tables, shape, dense.q, dense.k, dense.v, "layer 0"), InputError);
    EXPECT_THROW(core_attention(runtime, tables, shape_of(3, 2, 16), dense.q, dense.k, dense.v, "layer 0"),
                 InputError);
    EXPECT_THROW(AttentionRuntime(fabric, {"fast", 1, AttentionMemory::kKeep}), InputError);
  });
}

}  // namespace
}  // namespace distca
