// The words of a plan as plain structs. A CA-task is the unit of disaggregated core attention: a run of query
// rows of one document against a run of its keys, under the causal mask (key position <= query position).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace distca {

/// Half-open run of positions within a document.
struct Span {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Span&, const Span&) = default;
};

/// A run of one document's tokens that live on rank `home`, from row `row` of that rank's token buffer on.
struct Shard {
  int32_t doc = 0;
  Span tokens;
  int32_t home = 0;
  int64_t row = 0;

  friend bool operator==(const Shard&, const Shard&) = default;
};

/// Queries `q` of document `doc` against its keys `kv`, computed by rank `server`.
/// Diagonal when kv.end == q.end (the causal mask cuts it), full when kv.end <= q.begin + 1 (no mask).
struct Task {
  int32_t doc = 0;
  Span q, kv;
  int32_t server = 0;

  friend bool operator==(const Task&, const Task&) = default;
};

/// Rows a task's query rows are tiled by, and the grid of positions on which tasks are cut.
inline constexpr int64_t kTileRows = 128;

/// Number of (query, key) pairs a task computes under the causal mask. Exact; 64-bit.
int64_t pairs(const Task& task);

/// Pairs under the causal mask and a sliding window: query p sees keys p - window_left .. p.
int64_t pairs(const Task& task, int64_t window_left);

/// The load of a task without a profile: its rows tiled by 128 from its first row, a tile of r < 128 rows
/// costing its causal pairs × 128 / r, rounded up to a whole pair.
int64_t padded_pairs(const Task& task);

}  // namespace distca
