// The layer over MPI gives the bits that thread ranks give. Each process runs its MPI rank, and the whole
// again on threads.
#include <ATen/ops/equal.h>

#include <cmath>

#include "attend/core_attention.h"
#include "attend/testing.h"
#include "base/check.h"
#include "comm/mpi.h"
#include "comm/threads.h"
#include "plan/random_plan.h"

namespace distca {
namespace {

testing::HomeTensors run_rank(Fabric& fabric, const Plan& plan, const AttentionShape& shape,
                              at::ScalarType dtype, AttentionMemory memory) {
  AttentionRuntime runtime(fabric, {"cpu", 1, memory});
  const auto dense = testing::random_inputs(plan.layout.tokens(), shape, dtype, 3);
  return testing::run_layer(runtime, prepare(runtime, plan), shape, dense,
                            testing::dense_rows(plan.layout, fabric.rank()));
}

void compare(Fabric& mpi, at::ScalarType dtype, AttentionMemory memory) {
  Random random(11);
  const AttentionShape shape = {4, 2, 16, .25, kNoWindow};
  const Plan plan = random_plan(random, pack_in_order({900, 1, 0, 257, 131}, mpi.world_size()), 0);
  const testing::HomeTensors own = run_rank(mpi, plan, shape, dtype, memory);
  run_thread_ranks(mpi.world_size(), {}, [&](Fabric& fabric) {
    const testing::HomeTensors other = run_rank(fabric, plan, shape, dtype, memory);
    if (fabric.rank() != mpi.rank()) return;
    const bool same = at::equal(own.o, other.o) && at::equal(own.lse, other.lse) &&
                      at::equal(own.dq, other.dq) && at::equal(own.dk, other.dk) &&
                      at::equal(own.dv, other.dv);
    DISTCA_CHECK(same, "MPI rank {} has other bits than the same rank on threads", mpi.rank());
  });
}

}  // namespace
}  // namespace distca

int main() {
  using namespace distca;
  return run_mpi_rank({60}, [](Fabric& mpi) {
    DISTCA_CHECK(mpi.world_size() == 4, "this test runs on 4 ranks, not {}", mpi.world_size());
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const AttentionMemory memory : {AttentionMemory::kKeep, AttentionMemory::kResend}) {
        compare(mpi, dtype, memory);
      }
    }
  });
}
