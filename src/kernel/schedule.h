// How a batch of tasks is cut into the pieces that threads compute. A task's query rows and the heads of one
// group are laid side by side: lane i · group + g is query i, head g of the group, so that a key/value panel
// is read once for the whole group. Nothing here depends on the number of threads but the order of work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/attention.h"

namespace distca {

/// Lanes [lane_begin, lane_end) of a task and one key/value head.
struct LaneTile {
  int64_t task = 0, kv_head = 0;
  int64_t lane_begin = 0, lane_end = 0;
};

/// (lane, key) pairs that query rows [begin, end) of a task see, per query head.
int64_t visible_pairs(const KernelTask& task, int64_t begin, int64_t end, int64_t window_left);

/// The lanes of each piece when `lanes` are cut into as few pieces as max_lanes allows, evenly: whole strips.
int64_t even_lanes(int64_t lanes, int64_t max_lanes);

/// Forward: every tile computes its rows of O and LSE alone. Chunks are runs of tiles of about equal work,
/// the most expensive first.
struct ForwardSchedule {
  struct Chunk {
    int64_t begin = 0, end = 0;  // tiles
    int64_t cost = 0;
  };
  std::vector<LaneTile> tiles;
  std::vector<Chunk> chunks;
};

/// Reuses the memory of `schedule`. Tiles have at most max_lanes lanes, a multiple of 48.
void schedule_forward(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t max_lanes,
                      int threads, ForwardSchedule& schedule);

/// Where a run of rows is summed: in the result itself, or in a private copy that is added to it afterwards.
struct RowTarget {
  int64_t begin = 0, end = 0;    // rows of the result
  int64_t private_row = -1;      // first row of the private copy; −1: the result itself
  int64_t row(int64_t r) const;  // of the result or of the private copy
};

/// A part of a task whose gradients one thread computes. `q` and `kv` count the runs of its segment.
struct GradientPiece {
  int64_t task = 0;
  int64_t lane_begin = 0, lane_end = 0;
  int64_t q = 0, kv = 0;
};

/// The gradients of one tensor's rows: which runs of rows each segment sums, one segment after the other.
/// Runs of one segment are disjoint and in order. Those that meet rows of an earlier segment are private.
struct GradientRuns {
  std::vector<RowTarget> runs;
  std::vector<int64_t> first_of_segment;  // and their number at the end
  int64_t private_rows = 0;
  std::vector<RowTarget> untouched;  // rows of the result that nobody writes
};

/// Backward: segments are runs of pieces of about equal work, the same for each key/value head. A segment
/// that shares query or key rows with an earlier one sums them privately; private copies are added in the
/// order of segments.
struct BackwardSchedule {
  std::vector<GradientPiece> pieces;
  std::vector<int64_t> first_of_segment;  // pieces, and their number at the end
  GradientRuns q, kv;

  int64_t segments() const { return static_cast<int64_t>(first_of_segment.size()) - 1; }
};

/// `segments` to aim at; `lane_grain` is what lanes of a task are cut in multiples of, itself one of the
/// group.
void schedule_backward(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t q_rows,
                       int64_t kv_rows, int64_t segments, int64_t lane_grain, BackwardSchedule& schedule);

}  // namespace distca
