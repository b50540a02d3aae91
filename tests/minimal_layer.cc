// What a minimal build can do: one disaggregated attention layer, forward and backward, on ranks that are
// threads, against PyTorch's dense attention. Its exit code says whether they agree.
#include <cmath>
#include <cstdio>

#include "attend/attention_kernel.h"
#include "attend/layer_bench.h"
#include "comm/threads.h"
#include "plan/policy.h"

int main() {
  using namespace distca;
  const Plan plan = make_plan(pack_in_order({1500, 75, 375, 98}, 4), {}).plan;
  LayerBenchOptions options;
  options.shape = {4, 2, 32, 1 / std::sqrt(32.0)};
  options.repeats = 1;
  double worst = 0;
  run_thread_ranks(4, {}, [&](Fabric& fabric) {
    const LayerBenchResult result = bench_layer(fabric, plan, options);
    if (fabric.rank() != 0) return;
    for (const auto& error : result.errors) worst = std::fmax(worst, error.value);
  });
  const std::string kernel = make_attention_kernel("auto", at::kCPU, 1)->name();
  std::printf("one layer on 4 ranks, kernel '%s': within %.1e of the dense result\n", kernel.c_str(), worst);
  return worst < 1e-5 ? 0 : 1;
}
