// What a rank works with as long as the same ranks work together: its groups, the attention runtime over
// them, the link to its neighbouring stages, and the runner of its ticks. Made anew when others are lost; the
// parameters stay.
#pragma once

#include <memory>

#include "attend/attention_call.h"
#include "model/tensor_group.h"
#include "train/gradient_sum.h"
#include "train/rank_grid.h"
#include "train/rank_setup.h"
#include "train/stage_link.h"
#include "train/tick_runner.h"

namespace distca {

struct RankCrew {
  /// A collective of all ranks of `world`, of which this one has `place`.
  RankCrew(Fabric& world, const RunInputs& inputs, const RankGrid& grid, const RankPlace& place,
           SpanLog& spans);

  /// Before the first step: `parameters` are what this rank holds; their model uses this crew's
  /// tensor-parallel group from now on. They outlive the crew.
  void take(FlatParameters& parameters, const RunInputs& inputs, const RankGrid& grid,
            const RankPlace& place);

  /// Since the crew was made.
  int64_t bytes_sent() const;
  double packed_s() const { return runtime.stats.pack_s + runtime.stats.merge_s; }
  double waited_s() const;
  double computed_s() const { return runner->ci_s + runtime.stats.attend_s; }

  RankFabrics fabrics;
  TensorGroup group;                   // used where tp > 1
  std::unique_ptr<Fabric> exchanging;  // where stages exchange apart: this stage's ranks
  AttentionRuntime runtime;
  std::unique_ptr<StageLink> link;
  std::unique_ptr<GradientSum> gradient_sum;  // null on a dedicated server
  std::unique_ptr<TickRunner> runner;
};

}  // namespace distca
