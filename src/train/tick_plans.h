// Plans for the ticks of a step. The documents of one nano-batch live on the data-parallel ranks of whichever
// stage runs it; a plan covers the current documents of all stages that share exchanges, over all their ranks
// and the dedicated servers, so that stages without a micro-batch serve the others. Layers of a tick that the
// same stages run share a plan.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "attend/attention_kernel.h"
#include "attend/rank_tables.h"
#include "plan/exchange.h"
#include "plan/link_cost.h"
#include "plan/policy.h"
#include "train/rank_grid.h"
#include "train/ticks.h"

namespace distca {

/// What a stage's context-independent layers cost beside attention, in the unit of planned loads.
struct StageWork {
  double per_row_layer = 0;  // one layer, forward
  double per_row_head = 0;   // final norm, head and loss, forward
  double backward = 0.8;     // backward over forward. Without a profile loads are pairs in both directions,
                             // and this is relative to what attention's backward costs over its forward:
                             // twice the products here, 2.5 times there
};

struct TickPlanOptions {
  RankGrid grid;
  /// Stages that share exchanges: all of them, or one, to which the dedicated servers then don't belong.
  int32_t stage_begin = 0, stage_end = 1;
  std::vector<int64_t> stage_layers;  // of all stages
  PlanOptions plan;                   // costs are those of forward
  TaskCost backward_cost;             // of plans for backward alone
  StageWork work;
  std::optional<LinkCost> link;  // what exchanges are weighed against; none: they cost nothing
  bool keep = false;             // backward runs every task on the server of its forward
  int32_t rank = 0;              // whose tables are made, among those that share exchanges
  /// Whose tables are made with them, for layers of this shape; null: none.
  std::shared_ptr<const AttentionKernel> kernel;
  AttentionShape shape;

  int32_t stages() const { return stage_end - stage_begin; }
  int32_t home_ranks() const { return stages() * grid.dp; }
  int32_t dedicated() const { return stages() == grid.pp ? grid.servers : 0; }
  int32_t servers() const { return home_ranks() + dedicated(); }
  /// Layer slots of a tick: as many as the longest stage has layers.
  int64_t slots() const;
};

/// One nano-batch's exchanges of one layer slot, as one rank sees them.
struct SlotTables {
  std::shared_ptr<const RankTables> tables;
  /// Where a stage's rows end among those that arrived at this server, and among its copies. A stage
  /// without documents there ends where the one before it does.
  struct Ends {
    int64_t arrived = 0, copied = 0;
  };
  std::vector<Ends> q_end, kv_end;  // by stage
};

/// Rows that a rank holds of a nano-batch: its chunk, rounded up to the tensor-parallel degree.
int64_t rows_held(const Layout& layout, const RankGrid& grid);

struct PreparedTick {
  Tick tick;
  std::vector<std::vector<std::shared_ptr<const SlotTables>>> slots;  // [nano-batch][slot]
};

/// Plans the ticks of one step in their order.
class TickPlanner {
 public:
  /// `layouts` has the nano-batches micro-batch after micro-batch, over the data-parallel ranks.
  TickPlanner(const TickPlanOptions& options, std::vector<Layout> layouts, int64_t nano_batches);

  PreparedTick plan(const Tick& tick);

  /// Of the plans made so far, in order.
  const std::vector<uint64_t>& digests() const { return digests_; }
  /// The worst of them: latest finish over the best common finish time.
  double worst_finish() const { return worst_finish_; }
  /// How many of them couldn't keep the limit of K/V rows, and were made without it.
  int64_t beyond_row_limit() const { return beyond_row_limit_; }
  /// Attention that ranks without a micro-batch, dedicated servers included, have in the forward plans, and
  /// what the finish-time rule gives them.
  double idle_load() const { return idle_load_; }
  double idle_share() const { return idle_share_; }
  /// Load of this rank's tasks in all layers, forward and backward.
  double own_load() const { return own_load_; }
  /// The most K/V rows of a layer that a server holds, and the worst plan's most over its mean.
  int64_t held_rows() const { return held_rows_; }
  double held_rows_max_over_mean() const { return held_rows_max_over_mean_; }

 private:
  /// A plan of some stages' documents.
  struct Made {
    Plan plan;
    std::vector<int32_t> doc_end;  // by stage: where its documents end
    std::shared_ptr<const SlotTables> tables;
    double own_load = 0;  // of this rank's tasks, forward; `own_backward` backward
    double own_backward = 0;
  };
  using MadePointer = std::shared_ptr<const Made>;

  MadePointer make(const Tick& tick, int64_t nano_batch, int64_t slot, const std::vector<bool>& running,
                   const std::vector<double>& work);
  std::vector<bool> stages_running(const Tick& tick, int64_t slot) const;
  std::vector<double> other_work(const Tick& tick, const std::vector<bool>& running, int64_t slot) const;
  Layout combine(const Tick& tick, const std::vector<bool>& running, int64_t nano_batch,
                 std::vector<int32_t>& doc_end) const;
  Plan plan_of_forward(const Tick& tick, const std::vector<bool>& running, int64_t nano_batch, int64_t slot,
                       Layout layout, const std::vector<int32_t>& doc_end) const;
  std::shared_ptr<const SlotTables> tables_of(const Made& made, const Exchange& exchange,
                                              int64_t home_rows) const;
  PlanOptions plan_options(bool forward, const std::vector<double>& work) const;
  std::vector<SlotTables::Ends> ends_of(const RowTable& table,
                                        const std::vector<int64_t>& server_row_end) const;
  Plan make_within_limit(const Layout& layout, PlanOptions options);
  void account(const Plan& plan, const PlanOptions& options);
  void account_rows(const Plan& plan, const Exchange& exchange);
  void count_own_load(Made& made) const;

  const Layout& layout(int64_t micro_batch, int64_t nano_batch) const;
  int64_t layers(int32_t stage) const { return options_.stage_layers[options_.stage_begin + stage]; }

  TickPlanOptions options_;
  std::vector<Layout> layouts_;
  int64_t nano_batches_;
  /// Forward plans by (stage, micro-batch, nano-batch, layer of the stage), until their backward.
  std::map<std::array<int64_t, 4>, MadePointer> forwards_;
  std::vector<uint64_t> digests_;
  double worst_finish_ = 1;
  int64_t beyond_row_limit_ = 0;
  double idle_load_ = 0, idle_share_ = 0, own_load_ = 0;
  int64_t held_rows_ = 0;
  double held_rows_max_over_mean_ = 1;
};

}  // namespace distca
