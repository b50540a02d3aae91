#include "kernel/schedule.h"

#include <algorithm>

namespace distca {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Query rows [begin, end) that lanes touch.
std::pair<int64_t, int64_t> rows_of_lanes(int64_t lane_begin, int64_t lane_end, int64_t group) {
  return {lane_begin / group, (lane_end + group - 1) / group};
}

}  // namespace

int64_t even_lanes(int64_t lanes, int64_t max_lanes) {
  const int64_t pieces = (lanes + max_lanes - 1) / max_lanes;
  return round_up((lanes + pieces - 1) / pieces, 48);
}

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

/// Appends a segment's runs: makes private those that meet rows already taken, and takes the others.
void append_segment(Runs& segment, Runs& taken, GradientRuns& gradients) {
  unite(segment);
  for (RowTarget& run : segment) {
    const auto met = find_run(taken, run.begin);
    if (met == taken.end() || met->begin >= run.end) continue;
    run.private_row = gradients.private_rows;
    gradients.private_rows += run.end - run.begin;
  }
  for (const RowTarget& run : segment) {
    if (run.private_row < 0) taken.push_back(run);
  }
  unite(taken);
  gradients.runs.insert(gradients.runs.end(), segment.begin(), segment.end());
  gradients.first_of_segment.push_back(static_cast<int64_t>(gradients.runs.size()));
}

/// Rows [0, rows) that are in none of the runs.
void find_untouched(const Runs& taken, int64_t rows, Runs& untouched) {
  int64_t begin = 0;
  for (const RowTarget& run : taken) {
    if (run.begin > begin) untouched.push_back({begin, run.begin, -1});
    begin = run.end;
  }
  if (rows > begin) untouched.push_back({begin, rows, -1});
}

/// Cuts the lanes of all tasks into pieces and runs of pieces of about equal cost.
void cut_segments(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t segments,
                  int64_t lane_grain, BackwardSchedule& schedule) {
  const int64_t group = shape.heads / shape.kv_heads;
  int64_t total = 0;
  for (const KernelTask& task : tasks) total += visible_pairs(task, 0, task.q_len, shape.window_left);
  int64_t done = 0, closed = 0;
  schedule.first_of_segment.push_back(0);
  const auto close_segment = [&] {
    const auto end = static_cast<int64_t>(schedule.pieces.size());
    if (end > schedule.first_of_segment.back()) schedule.first_of_segment.push_back(end);
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
      schedule.pieces.push_back({static_cast<int64_t>(t), begin, end});
      begin = end;
      if (full) {
        ++closed;
        close_segment();
      }
    }
  }
  close_segment();
}

/// Says for each piece which rows of one tensor it sums into. `rows_of` gives the rows of a piece, `run_of`
/// the piece's place for the run that holds them.
template <typename RowsOf>
void place_runs(BackwardSchedule& schedule, int64_t rows, const RowsOf& rows_of,
                int64_t GradientPiece::*run_of, GradientRuns& gradients) {
  thread_local Runs segment, taken;
  taken.clear();
  gradients.runs.clear();
  gradients.first_of_segment.assign(1, 0);
  gradients.private_rows = 0;
  gradients.untouched.clear();
  for (int64_t s = 0; s < schedule.segments(); ++s) {
    const auto pieces = std::span(schedule.pieces)
                            .subspan(schedule.first_of_segment[s],
                                     schedule.first_of_segment[s + 1] - schedule.first_of_segment[s]);
    segment.clear();
    for (const GradientPiece& piece : pieces) {
      const RowTarget run = rows_of(piece);
      if (run.end > run.begin) segment.push_back(run);
    }
    append_segment(segment, taken, gradients);
    for (GradientPiece& piece : pieces) {
      const RowTarget run = rows_of(piece);
      piece.*run_of = run.end > run.begin ? find_run(segment, run.begin) - segment.begin() : -1;
    }
  }
  find_untouched(taken, rows, gradients.untouched);
}

}  // namespace

void schedule_backward(const AttentionShape& shape, std::span<const KernelTask> tasks, int64_t q_rows,
                       int64_t kv_rows, int64_t segments, int64_t lane_grain, BackwardSchedule& schedule) {
  const int64_t group = shape.heads / shape.kv_heads;
  schedule.pieces.clear();
  schedule.first_of_segment.clear();
  cut_segments(shape, tasks, segments, lane_grain, schedule);
  const auto q_of = [&](const GradientPiece& piece) {
    const auto [first, last] = rows_of_lanes(piece.lane_begin, piece.lane_end, group);
    const int64_t q_row = tasks[piece.task].q_row;
    return RowTarget{q_row + first, q_row + last, -1};
  };
  const auto kv_of = [&](const GradientPiece& piece) {
    const KernelTask& task = tasks[piece.task];
    return RowTarget{task.kv_row, task.kv_row + task.kv_len, -1};
  };
  place_runs(schedule, q_rows, q_of, &GradientPiece::q, schedule.q);
  place_runs(schedule, kv_rows, kv_of, &GradientPiece::kv, schedule.kv);
}

}  // namespace distca
