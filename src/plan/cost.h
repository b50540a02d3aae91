// What a task costs. Without a profile: padded pairs. With one: picoseconds of a speed-1 server, interpolated
// on the measured grid of (query rows, key rows): linear along rows of the grid in mean keys of a query row,
// and between two rows at equal mean keys, which is exact where start-up, rows and pairs each have their
// price. Costs are integers from additions, multiplications and divisions of IEEE alone, so that every
// machine and compiler gets the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/task.h"

namespace distca {

/// Times measured for tasks whose mask is bottom-right causal: kv rows of keys, the last query row sees them
/// all. Where kv < q some rows would see nothing: costs don't depend on what stands there.
struct AttentionTimes {
  std::vector<int64_t> q, kv;                // ascending
  std::vector<std::vector<double>> seconds;  // [q][kv]
};

class TaskCost {
 public:
  /// Padded pairs.
  TaskCost() = default;
  /// Picoseconds.
  explicit TaskCost(const AttentionTimes& times);

  bool in_seconds() const { return table_ != nullptr; }

  /// What so many tiles of 128 by 128 pairs cost, at the rate of a large task.
  int64_t of_tiles(int64_t tiles) const;

  /// Query rows count as full tiles of 128. A full task costs what a causal one of equal rows and pairs does.
  int64_t operator()(const Task& task) const { return table_ ? picoseconds(task) : padded_pairs(task); }

 private:
  struct Table;
  int64_t picoseconds(const Task& task) const;

  std::shared_ptr<const Table> table_;
};

}  // namespace distca
