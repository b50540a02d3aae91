// The ranks that share the weights of a layer (a tensor-parallel group), and the two collectives over rows
// that run between them: an all-gather of rows before a product whose output columns are split, and a
// reduce-scatter of rows after one whose input columns are. Both go out in runs of rows, so that the products
// around them work on one run while others travel.
//
// The group's ranks hold the same rows: rank t holds rows [t · L, (t + 1) · L) of tp · L where each row is
// needed once (between layers: "sequence parallel"), and all of them where columns are split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attend/device_graph.h"
#include "base/span_log.h"
#include "comm/fabric.h"

namespace distca {

struct TensorGroup {
  explicit TensorGroup(Fabric& fabric) : fabric(fabric) {}

  Fabric& fabric;
  /// Runs of rows that a collective is cut into. With 1 nothing overlaps: products wait for all rows.
  int64_t runs = 4;
  /// Rows of one rank that are not worth cutting further; small products are slow.
  int64_t least_rows = 64;

  // Sums since the group was made.
  double wait_s = 0;         // exposed: spent waiting for a collective
  int64_t bytes = 0;         // sent
  SpanLog* spans = nullptr;  // where waits are recorded
  /// While work that the group's collectives are part of is captured: they are done in its runs.
  CapturedWork* capturing = nullptr;

  int32_t rank() const { return fabric.rank(); }
  int32_t size() const { return fabric.world_size(); }
};

/// 1 without a group.
int32_t size_of(const TensorGroup* group);

/// Calls `block(row, rows)` does some rows' work: rows [row, row + rows) of all tp · L.
using RowBlock = std::function<void(int64_t row, int64_t rows)>;

/// Cuts `rows` into `runs` that differ by one row at most.
struct RowRuns {
  int64_t rows = 0, runs = 1;

  int64_t begin(int64_t run) const { return rows * run / runs; }
  int64_t count(int64_t run) const { return begin(run + 1) - begin(run); }
};

/// As the group says. One run where there is no group.
RowRuns runs_of(const TensorGroup* group, int64_t rows);

/// An all-gather under way; it travels from construction on.
class RowGather {
 public:
  /// `own` is (L, width), of the same size on all ranks. Without a group, or in one of a single rank, all()
  /// is `own`.
  RowGather(TensorGroup* group, const at::Tensor& own, const std::string& name);
  RowGather(TensorGroup* group, const at::Tensor& own, RowRuns runs, const std::string& name);

  const RowRuns& runs() const { return runs_; }
  /// Returns when rows [begin(run), begin(run) + count(run)) of every rank are there.
  void wait(int64_t run);
  /// Does all rows' work in blocks: this rank's own rows first, then the others' as they arrive. All have
  /// arrived on return.
  void for_each_block(const RowBlock& block);
  /// (tp · L, width), rank after rank. A run's rows may be read after wait(run).
  const at::Tensor& all() const { return all_; }

 private:
  TensorGroup* group_;
  RowRuns runs_;
  at::Tensor own_, all_;
  std::vector<std::unique_ptr<Pending>> pending_;  // by run; null: arrived
};

/// A reduce-scatter under way: every rank writes its share of all rows' sums, and ends with the sums of its
/// own rows. Shares travel in their type and are added in rank order, in float32 where they are shorter, so
/// the same shares give the same bits.
class RowScatter {
 public:
  RowScatter(TensorGroup* group, at::IntArrayRef shape_of_all, const at::TensorOptions& options,
             const std::string& name);
  RowScatter(TensorGroup* group, at::IntArrayRef shape_of_all, const at::TensorOptions& options, RowRuns runs,
             const std::string& name);

  const RowRuns& runs() const { return runs_; }
  /// (tp · L, width): this rank's shares, to be written before they are sent.
  const at::Tensor& shares() const { return shares_; }
  /// Sends the shares of a run's rows to those ranks whose rows they are. Runs are sent in order.
  void send(int64_t run);
  /// Has all shares written in blocks, the other ranks' first, each run sent as soon as it is there.
  void fill(const RowBlock& block);
  /// After all runs were sent: (L, width).
  at::Tensor finish();

 private:
  TensorGroup* group_;
  RowRuns runs_;
  std::string name_;
  at::Tensor shares_, received_;
  std::vector<std::unique_ptr<Pending>> pending_;  // by run
};

/// Every rank's `own`, equally shaped, one after the other: (tp, …). Waits.
at::Tensor gather_now(TensorGroup& group, const at::Tensor& own, const std::string& name);

}  // namespace distca
