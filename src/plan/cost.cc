#include "plan/cost.h"

#include <array>
#include <atomic>
#include <cmath>

#include "base/check.h"

namespace distca {

struct TaskCost::Table {
  /// Tasks of so many rows: seconds by mean keys of a row, ascending.
  struct Line {
    double rows = 0;
    std::vector<double> keys, seconds;

    /// Linear between the points: start-up, rows and pairs each cost what they cost. Below the first the
    /// slope goes on, but no task is cheaper than its share of the first point's pairs; beyond the last it is
    /// in proportion to pairs.
    double seconds_at(double at) const {
      const double in_proportion = at / keys.front() * seconds.front();
      if (keys.size() == 1) return in_proportion;
      if (at >= keys.back()) return at / keys.back() * seconds.back();
      const auto after = std::upper_bound(keys.begin() + 1, keys.end() - 1, at);
      const auto i = static_cast<size_t>(after - keys.begin());
      const double share = (at - keys[i - 1]) / (keys[i] - keys[i - 1]);
      const double on_line = seconds[i - 1] + share * (seconds[i] - seconds[i - 1]);
      return at < keys.front() ? std::max(on_line, in_proportion) : on_line;
    }
  };

  int64_t number = 0;  // no other table of this process has it
  std::vector<Line> lines;

  /// Linear between two lines at equal mean keys; beyond the lines, in proportion to rows.
  int64_t picoseconds(int64_t row_count, int64_t pairs) const {
    const auto rows = static_cast<double>(row_count);
    const double keys = static_cast<double>(pairs) / rows;
    const auto after = std::upper_bound(lines.begin(), lines.end(), rows,
                                        [](double value, const Line& line) { return value < line.rows; });
    double seconds = 0;
    if (after == lines.begin() || after == lines.end()) {
      const Line& nearest = after == lines.begin() ? *after : *(after - 1);
      seconds = rows / nearest.rows * nearest.seconds_at(keys);
    } else {
      const Line& below = *(after - 1);
      const double at_below = below.seconds_at(keys);
      const double share = (rows - below.rows) / (after->rows - below.rows);
      seconds = at_below + share * (after->seconds_at(keys) - at_below);
    }
    return static_cast<int64_t>(seconds * 1e12 + 0.5);
  }
};

namespace {

void check_grid(const std::vector<int64_t>& grid, const char* name) {
  DISTCA_CHECK_INPUT(grid.size() >= 2, "the profile's {} grid has {} points: it needs two", name,
                     grid.size());
  for (size_t i = 0; i < grid.size(); ++i) {
    DISTCA_CHECK_INPUT(grid[i] > (i == 0 ? 0 : grid[i - 1]), "the profile's {} grid isn't ascending at {}",
                       name, grid[i]);
  }
}

}  // namespace

TaskCost::TaskCost(const AttentionTimes& times) {
  check_grid(times.q, "q");
  check_grid(times.kv, "kv");
  DISTCA_CHECK_INPUT(times.seconds.size() == times.q.size(), "the profile has {} rows of seconds for {} q",
                     times.seconds.size(), times.q.size());
  static std::atomic<int64_t> tables = 0;
  auto table = std::make_shared<Table>();
  table->number = ++tables;
  for (size_t i = 0; i < times.q.size(); ++i) {
    const std::vector<double>& row = times.seconds[i];
    DISTCA_CHECK_INPUT(row.size() == times.kv.size(), "the profile has {} seconds in a row for {} kv",
                       row.size(), times.kv.size());
    Table::Line line{static_cast<double>(times.q[i]), {}, {}};
    for (size_t j = 0; j < row.size(); ++j) {
      DISTCA_CHECK_INPUT(row[j] > 0 && row[j] < 1e6, "the profile has a task of {} seconds", row[j]);
      if (times.kv[j] < times.q[i]) continue;  // rows that see nothing
      // A causal task of q rows and kv keys has q · (kv - (q - 1) / 2) pairs.
      line.keys.push_back(static_cast<double>(times.kv[j]) - (line.rows - 1) / 2);
      line.seconds.push_back(row[j]);
    }
    if (!line.keys.empty()) table->lines.push_back(std::move(line));
  }
  DISTCA_CHECK_INPUT(!table->lines.empty(), "the profile has no task of as many keys as rows: kv ends at {}",
                     times.kv.back());
  table_ = std::move(table);
}

int64_t TaskCost::picoseconds(const Task& task) const {
  if (task.q.empty() || task.kv.empty()) return 0;
  const int64_t rows = (task.q.size() + kTileRows - 1) / kTileRows * kTileRows, pairs = padded_pairs(task);
  // A plan asks for the same shapes again and again; searching lines costs more than looking here.
  struct Known {
    int64_t table = 0, rows = 0, pairs = 0, cost = 0;
  };
  constexpr uint64_t kKnown = 2048;
  thread_local std::array<Known, kKnown> known_here;
  const uint64_t mixed = static_cast<uint64_t>(rows * 31 + pairs) * 0x9e3779b97f4a7c15;
  Known& known = known_here[(mixed >> 40) % kKnown];
  if (known.table != table_->number || known.rows != rows || known.pairs != pairs)
    known = {table_->number, rows, pairs, table_->picoseconds(rows, pairs)};
  return known.cost;
}

int64_t TaskCost::of_tiles(int64_t tiles) const {
  return tiles * (*this)(Task{0, {kTileRows * 64, kTileRows * 128}, {0, kTileRows}, 0}) / 64;
}

}  // namespace distca
