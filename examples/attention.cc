// One disaggregated attention layer on four ranks, threads of this process: Q, K, V of a packed batch in, the
// exact output of causal attention per document out, forward and backward.
#include <ATen/ATen.h>

#include <cmath>

#include "attend/core_attention.h"
#include "comm/threads.h"
#include "plan/policy.h"

int main() {
  using namespace distca;
  const Plan plan = make_plan(pack_in_order({6000, 300, 1500, 392}, 4), {}).plan;
  const AttentionShape shape = {8, 2, 64, 1 / std::sqrt(64.0)};  // heads, key/value heads, head_dim, scale
  run_thread_ranks(4, {}, [&](Fabric& fabric) {
    AttentionRuntime runtime(fabric);
    const BatchTables tables = prepare(runtime, plan);  // validates; ranks compare digests
    const auto rows = [&](int64_t heads) {
      return at::randn({plan.layout.rows, heads, 64}).requires_grad_();
    };
    const at::Tensor q = rows(8), k = rows(2), v = rows(2);
    const at::Tensor o = core_attention(runtime, tables, shape, q, k, v, "layer 0");
    o.sum().backward();  // q.grad(), k.grad(), v.grad(): summed over all ranks that used them
    std::printf("rank %d sent %ld bytes\n", fabric.rank(), runtime.stats.total_bytes());
  });
}
