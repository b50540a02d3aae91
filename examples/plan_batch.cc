// Plan a batch: eight documents on four ranks. Links distca_plan alone: no PyTorch, no MPI.
#include <cstdio>

#include "plan/policy.h"
#include "plan/traffic.h"

int main() {
  using namespace distca;
  const Layout layout = pack_in_order({60000, 3000, 3000, 2000, 30000, 20000, 8000, 5072}, 4);
  PlanOptions options;  // policy cad, tolerance .02, Llama 3 8B's bytes
  const Plan plan = make_plan(layout, options).plan;
  const Traffic traffic = planned_traffic(plan, make_exchange(plan), options.bytes);
  for (const Task& task : plan.tasks) {
    std::printf("rank %d: document %d, queries %ld to %ld, keys %ld to %ld\n", task.server, task.doc,
                task.q.begin, task.q.end, task.kv.begin, task.kv.end);
  }
  std::printf("%.1f MB leave their home\n", static_cast<double>(traffic.total()) / 1e6);
}
