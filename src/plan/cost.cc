#include "plan/cost.h"

#include <array>
#include <atomic>
#include <cmath>

#include "base/check.h"

namespace distca {

struct TaskCost::Table {
  int64_t number = 0;  // no other table of this process has it
  std::vector<double> log_q, log_kv;
  std::vector<std::vector<double>> log_seconds;

  /// Bilinear in log space; beyond the grid, the slope of its last cell goes on.
  double log_seconds_at(double q, double kv) const {
    const auto [i, x] = cell(log_q, q);
    const auto [j, y] = cell(log_kv, kv);
    const double at_i = log_seconds[i][j] + y * (log_seconds[i][j + 1] - log_seconds[i][j]);
    const double at_next = log_seconds[i + 1][j] + y * (log_seconds[i + 1][j + 1] - log_seconds[i + 1][j]);
    return at_i + x * (at_next - at_i);
  }

  /// Of a task with so many rows, in full tiles, and so many pairs.
  int64_t picoseconds(int64_t row_count, int64_t pairs) const {
    const auto rows = static_cast<double>(row_count);
    // A causal task of q rows and kv keys has q · (kv - (q - 1) / 2) pairs.
    const double keys = static_cast<double>(pairs) / rows + (rows - 1) / 2;
    const double seconds = exact_exp2(log_seconds_at(exact_log2(rows), exact_log2(std::max(1.0, keys))));
    return static_cast<int64_t>(seconds * 1e12 + 0.5);
  }

  static std::pair<size_t, double> cell(const std::vector<double>& grid, double value) {
    const auto after = std::upper_bound(grid.begin() + 1, grid.end() - 1, value);
    const auto i = static_cast<size_t>(after - grid.begin()) - 1;
    return {i, (value - grid[i]) / (grid[i + 1] - grid[i])};
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

std::vector<double> logs(const std::vector<int64_t>& values) {
  std::vector<double> logs;
  for (const int64_t value : values) logs.push_back(exact_log2(static_cast<double>(value)));
  return logs;
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
  table->log_q = logs(times.q);
  table->log_kv = logs(times.kv);
  for (const std::vector<double>& row : times.seconds) {
    DISTCA_CHECK_INPUT(row.size() == times.kv.size(), "the profile has {} seconds in a row for {} kv",
                       row.size(), times.kv.size());
    std::vector<double>& logs = table->log_seconds.emplace_back();
    for (const double seconds : row) {
      DISTCA_CHECK_INPUT(seconds > 0 && seconds < 1e6, "the profile has a task of {} seconds", seconds);
      logs.push_back(exact_log2(seconds));
    }
  }
  table_ = std::move(table);
}

int64_t TaskCost::picoseconds(const Task& task) const {
  if (task.q.empty() || task.kv.empty()) return 0;
  const int64_t rows = (task.q.size() + kTileRows - 1) / kTileRows * kTileRows, pairs = padded_pairs(task);
  // A plan asks for the same shapes again and again; logarithms cost forty divisions.
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

double exact_log2(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 · artanh((m - 1) / (m + 1)), |argument| < 0.1716
  const double z = (m - 1) / (m + 1), z2 = z * z;
  double sum = 0;
  for (int k = 19; k >= 1; k -= 2) sum = sum * z2 + 1.0 / k;
  return exponent + 2 * z * sum * 1.4426950408889634;
}

double exact_exp2(double x) {
  const double whole = std::floor(x + 0.5);
  const double y = (x - whole) * 0.69314718055994531;  // |y| < 0.3466
  double sum = 1;
  for (int k = 16; k >= 1; --k) sum = 1 + sum * y / k;
  return std::ldexp(sum, static_cast<int>(whole));
}

}  // namespace distca
