// One long document over eight ranks. DISTCA_LONG_TOKENS sets another length: sanitizers take a short one, a
// check by hand a longer one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/dot.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "attend/core_attention.h"
#include "attend/testing.h"
#include "base/check.h"
#include "comm/threads.h"
#include "plan/policy.h"
#include "plan/random_plan.h"

namespace distca {
namespace {

int64_t long_tokens() {
  const char* text = std::getenv("DISTCA_LONG_TOKENS");
  return text == nullptr ? 131072 : std::atoll(text);
}

// O and dQ of one row of one head, from all its keys at once, in float64.
struct Row {
  at::Tensor o, dq;
};

Row reference_row(const testing::DenseTensors& dense, double scale, int64_t row) {
  const auto exact = [](const at::Tensor& x) { return x.select(1, 0).to(at::kDouble); };
  const at::Tensor keys = exact(dense.k.narrow(0, 0, row + 1)), values = exact(dense.v.narrow(0, 0, row + 1));
  const at::Tensor q = exact(dense.q.narrow(0, row, 1))[0], dout = exact(dense.dout.narrow(0, row, 1))[0];
  const at::Tensor p = (keys.mv(q) * scale).softmax(0);
  const at::Tensor o = values.t().mv(p);
  const at::Tensor ds = p * (values.mv(dout) - dout.dot(o));
  return {o, keys.t().mv(ds) * scale};
}

TEST(LongDocument, SampledRowsEqualTheReference) {
  const int64_t tokens = long_tokens();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const AttentionShape shape = {1, 1, 16, .25, kNoWindow};
  PlanOptions options;
  options.bytes = row_bytes({1, 1, 16, 4});
  const Plan plan = make_plan(pack_in_order({tokens}, 8), options).plan;
  const testing::DenseTensors dense = testing::random_inputs(tokens, shape, at::kFloat, seed);
  std::vector<at::Tensor> o(8), dq(8);
  run_thread_ranks(8, {600}, [&](Fabric& fabric) {
    AttentionRuntime runtime(fabric);
    const auto home = testing::run_layer(runtime, prepare(runtime, plan), shape, dense,
                                         testing::dense_rows(plan.layout, fabric.rank()));
    o[fabric.rank()] = home.o;
    dq[fabric.rank()] = home.dq;
  });
  Random random(seed);
  double o_error = 0, o_largest = 0, dq_error = 0, dq_largest = 0;
  for (int i = 0; i < 64; ++i) {
    const int64_t row = i == 0 ? 0 : i == 1 ? tokens - 1 : random.between(0, tokens - 1);
    const int64_t rank = row / plan.layout.rows, own = row % plan.layout.rows;
    const Row expected = reference_row(dense, shape.scale, row);
    const auto largest = [](const at::Tensor& x) { return x.abs().max().item<double>(); };
    o_error = std::max(o_error, largest(o[rank][own][0].to(at::kDouble) - expected.o));
    dq_error = std::max(dq_error, largest(dq[rank][own][0].to(at::kDouble) - expected.dq));
  }
  // Errors are shares of a tensor's largest entry, which stands in a row that sees few keys: the last ones'
  // gradients are averages of a hundred thousand.
  for (size_t rank = 0; rank < o.size(); ++rank) {
    o_largest = std::max(o_largest, o[rank].abs().max().item<double>());
    dq_largest = std::max(dq_largest, dq[rank].abs().max().item<double>());
  }
  EXPECT_LE(o_error, 5e-6 * o_largest);
  EXPECT_LE(dq_error, 5e-6 * dq_largest);
}

}  // namespace
}  // namespace distca
