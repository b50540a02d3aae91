#include "kernel/schedule.h"

#include <algorithm>

namespace distca {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The lanes of each piece when `lanes` are cut into as few pieces as max_lanes allows, evenly.
int64_t even_lanes(int64_t lanes, int64_t max_lanes) {
  const int64_t pieces = (lanes + max_lanes - 1) / max_lanes;
  return round_up((lanes + pieces - 1) / pieces, 48);
}

/// Query rows [begin, end) that lanes touch.
std::pair<int64_t, int64_t> rows_of_lanes(int64_t lane_begin, int64_t lane_end, int64_t group) {
  return {lane_begin / group, (lane_end + group - 1) / group};
}

}  // namespace

int64_t visible_pairs(const KernelTask& task, int64_t begin, int64_t end, int64_t window_left) {
  int64_t pairs = 0;
  for (int64_t query = begin; query < end; ++query) {
    const KeyRange keys = visible_keys(task, query, window_left);
    pairs += keys.end - keys.begin;
  }
  return pairs;
}

void schedule_forward(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t max_lanes,
                      int threads, ForwardSchedule& schedule) {
  const int64_t group = shape.heads / shape.kv_heads;
  schedule.tiles.clear();
  schedule.chunks.clear();
  int64_t total = 0;
  for (const KernelTask& task : tasks) total += visible_pairs(task, 0, task.q_len, shape.window_left) + 1;
  // Sixteen chunks a thread keep the last ones from being waited for.
  const int64_t enough = total * shape.kv_heads / (16 * threads) + 1;
  ForwardSchedule::Chunk chunk;
  const auto close_chunk = [&] {
    chunk.end = static_cast<int64_t>(schedule.tiles.size());
    if (chunk.end > chunk.begin) schedule.chunks.push_back(chunk);
    chunk = {chunk.end, chunk.end, 0};
  };
  for (size_t t = 0; t < tasks.size(); ++t) {
    const int64_t lanes = tasks[t].q_len * group;
    if (lanes <= 0) continue;
    const int64_t step = even_lanes(lanes, max_lanes);
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int64_t lane = 0; lane < lanes; lane += step) {
        const int64_t end = std::min(lanes, lane + step);
        const auto [first, last] = rows_of_lanes(lane, end, group);
        schedule.tiles.push_back({static_cast<int64_t>(t), kv_head, lane, end});
        chunk.cost += visible_pairs(tasks[t], first, last, shape.window_left) + 1;
        if (chunk.cost >= enough) close_chunk();
      }
    }
  }
  close_chunk();
  std::sort(schedule.chunks.begin(), schedule.chunks.end(), [](const auto& a, const auto& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.begin < b.begin;
  });
}

int64_t RowTarget::row(int64_t r) const {
  return private_row < 0 ? r : private_row + r - begin;
}

namespace {

/// Disjoint runs of rows in order, as RowTargets that aim at the result itself.
using Runs = std::vector<RowTarget>;

void unite(Runs& runs) {
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  size_t kept = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (kept > 0 && runs[i].begin < runs[kept - 1].end) {
      runs[kept - 1].end = std::max(runs[kept - 1].end, runs[i].end);
    } else {
      runs[kept++] = runs[i];
    }
  }
  runs.resize(kept);
}

/// The run that holds row `begin`, or the next one.
Runs::iterator find_run(Runs& runs, int64_t begin) {
  return std::upper_bound(runs.begin(), runs.end(), begin,
                          [](int64_t row, const RowTarget& run) { return row < run.end; });
}

/// Makes private those of a segment's runs that meet rows already taken, and takes the others.
void assign_targets(Runs& runs, Runs& taken, Runs& privates, int64_t& private_rows) {
  unite(runs);
  for (RowTarget& run : runs) {
    const auto met = find_run(taken, run.begin);
    if (met == taken.end() || met->begin >= run.end) continue;
    run.private_row = private_rows;
    private_rows += run.end - run.begin;
    privates.push_back(run);
  }
  const auto taken_before = static_cast<std::ptrdiff_t>(taken.size());
  for (const RowTarget& run : runs) taken.push_back({run.begin, run.end, -1});
  if (taken_before > 0 || taken.size() > 1) unite(taken);
}

/// Cuts the lanes of all tasks into pieces and runs of pieces of about equal cost.
void cut_segments(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t segments,
                  int64_t lane_grain, BackwardSchedule& schedule) {
  const int64_t group = shape.heads / shape.kv_heads;
  int64_t total = 0;
  for (const KernelTask& task : tasks) total += visible_pairs(task, 0, task.q_len, shape.window_left);
  int64_t done = 0, closed = 0, first_piece = 0;
  const auto close_segment = [&] {
    const auto end = static_cast<int64_t>(schedule.pieces.size());
    if (end > first_piece) schedule.segments.push_back({first_piece, end});
    first_piece = end;
  };
  for (size_t t = 0; t < tasks.size(); ++t) {
    const int64_t lanes = tasks[t].q_len * group;
    int64_t begin = 0;
    for (int64_t lane = 0; lane < lanes; lane += lane_grain) {
      const int64_t end = std::min(lanes, lane + lane_grain);
      const auto [first, last] = rows_of_lanes(lane, end, group);
      done += visible_pairs(tasks[t], first, last, shape.window_left);
      const bool full = closed + 1 < segments && done >= total / segments * (closed + 1);
      if (!full && end < lanes) continue;
      schedule.pieces.push_back({static_cast<int64_t>(t), begin, end, {}, {}});
      begin = end;
      if (full) {
        ++closed;
        close_segment();
      }
    }
  }
  close_segment();
}

}  // namespace

void schedule_backward(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t segments,
                       int64_t lane_grain, BackwardSchedule& schedule) {
  const int64_t group = shape.heads / shape.kv_heads;
  schedule.pieces.clear();
  schedule.segments.clear();
  schedule.private_q.clear();
  schedule.private_kv.clear();
  schedule.private_q_rows = schedule.private_kv_rows = 0;
  cut_segments(shape, tasks, segments, lane_grain, schedule);
  thread_local Runs q_runs, kv_runs, q_taken, kv_taken;
  q_taken.clear();
  kv_taken.clear();
  for (const auto& segment : schedule.segments) {
    q_runs.clear();
    kv_runs.clear();
    for (int64_t i = segment.begin; i < segment.end; ++i) {
      const GradientPiece& piece = schedule.pieces[i];
      const KernelTask& task = tasks[piece.task];
      const auto [first, last] = rows_of_lanes(piece.lane_begin, piece.lane_end, group);
      q_runs.push_back({task.q_row + first, task.q_row + last, -1});
      if (task.kv_len > 0) kv_runs.push_back({task.kv_row, task.kv_row + task.kv_len, -1});
    }
    assign_targets(q_runs, q_taken, schedule.private_q, schedule.private_q_rows);
    assign_targets(kv_runs, kv_taken, schedule.private_kv, schedule.private_kv_rows);
    for (int64_t i = segment.begin; i < segment.end; ++i) {
      GradientPiece& piece = schedule.pieces[i];
      const KernelTask& task = tasks[piece.task];
      piece.q = *find_run(q_runs, task.q_row + piece.lane_begin / group);
      if (task.kv_len > 0) piece.kv = *find_run(kv_runs, task.kv_row);
    }
  }
}

}  // namespace distca
