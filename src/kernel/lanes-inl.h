// The query lanes of one tile of a task: what the forward and the backward kernel share of setting one up and
// of walking over its strips and key blocks.
#if defined(DISTCA_KERNEL_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DISTCA_KERNEL_LANES_INL_H_
#undef DISTCA_KERNEL_LANES_INL_H_
#else
#define DISTCA_KERNEL_LANES_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernel/ahead.h"
#include "kernel/attention.h"
#include "kernel/schedule.h"
#include "kernel/strip-inl.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {

/// Calls visit(lane, row) for each of a task's lanes [first, last) of a key/value head, `row` as in a (rows,
/// heads) array that begins with the task's first query. A lane costs no division: it may have few keys.
template <class Visit>
HWY_INLINE void for_lanes(const AttentionShape& shape, int64_t kv_head, int64_t first, int64_t last,
                          Visit visit) {
  const int64_t group = shape.heads / shape.kv_heads;
  int64_t of_group = first % group, row = first / group * shape.heads + kv_head * group + of_group;
  for (int64_t lane = first; lane < last; ++lane, ++row) {
    visit(lane, row);
    if (++of_group == group) of_group = 0, row += shape.heads - group;
  }
}

/// Of a tile; none of no tile.
inline int64_t lanes_of(const LaneTile* tile) {
  return tile == nullptr ? 0 : tile->lane_end - tile->lane_begin;
}

/// Lets rows [first, last) of a task's keys and values be fetched, of one key/value head. `args` is the call.
template <class Call>
void add_keys(const Call& args, const KernelTask& task, int64_t kv_head, int64_t first, int64_t last,
              Ahead& ahead) {
  const int64_t dim = args.shape.head_dim, stride = args.shape.kv_heads * dim;
  const auto *k_row = args.k.row(task.kv_row, stride) + kv_head * dim,
             *v_row = args.v.row(task.kv_row, stride) + kv_head * dim;
  for (int64_t key = first; key < last; ++key) {
    ahead.add(k_row + key * stride);
    ahead.add(v_row + key * stride);
  }
}

/// `wide` is head_dim padded to whole register tiles, `padded_lanes` the lanes padded to whole vectors.
template <typename E>
struct TileLanes {
  static constexpr int64_t kLanes = Tile<E>::kLanes, kRows = Tile<E>::kRows;
  static constexpr int64_t kStripLanes = Tile<E>::kVectors * kLanes;

  const AttentionShape& shape;
  const KernelTask& task;
  const int64_t kv_head, lane_begin, lane_end;
  const int64_t group, dim, wide, lanes, padded_lanes;
  int64_t block = 0, block_keys = 0;  // the keys that are worked on

  TileLanes(const AttentionShape& shape, const KernelTask& task, const LaneTile& tile)
      : shape(shape),
        task(task),
        kv_head(tile.kv_head),
        lane_begin(tile.lane_begin),
        lane_end(tile.lane_end),
        group(shape.heads / shape.kv_heads),
        dim(shape.head_dim),
        wide(round_up(dim, 16)),
        lanes(lane_end - lane_begin),
        padded_lanes(round_up(lanes, kLanes)) {}

  /// Calls visit(i, row) for the `count` lanes of the tile that begin at `lane`, i from 0 on.
  template <class Visit>
  HWY_INLINE void for_rows(int64_t lane, int64_t count, Visit visit) const {
    const int64_t first = lane_begin + lane;
    for_lanes(shape, kv_head, first, first + count, [&](int64_t at, int64_t row) { visit(at - first, row); });
  }

  /// Keys that any lane sees.
  KeyRange keys() const {
    const KeyRange low = visible_keys(task, lane_begin / group, shape.window_left);
    const KeyRange high = visible_keys(task, (lane_end - 1) / group, shape.window_left);
    return {low.begin, high.end};
  }

  /// Calls step() for each block of at most `most` keys of the task's grid that holds any of `keys`.
  template <class Step>
  HWY_INLINE void for_blocks(const KeyRange& keys, int64_t most, Step step) {
    for (block = keys.begin / most * most; block < keys.end; block += most) {
      block_keys = std::min(most, keys.end - block);
      step();
    }
  }

  /// Calls (body.*kStep)(lane, vectors) for each strip.
  template <auto kStep, class Body>
  HWY_INLINE void for_strips(Body& body) {
    for (int64_t lane = 0; lane < padded_lanes;) {
      const int vectors = strip_vectors((padded_lanes - lane) / kLanes);
      (body.*kStep)(lane, vectors);
      lane += vectors * kLanes;
    }
  }

  /// Register tiles of keys that the strips see of the block, all together.
  int64_t tiles_of_strips() const {
    int64_t tiles = 0;
    for (int64_t lane = 0; lane < lanes; lane += kStripLanes) {
      const int64_t first = lane_begin + lane, last = std::min(lane_end, first + kStripLanes);
      const StripKeys keys =
          strip_keys(task, shape.window_left, group, first, last, block, block_keys, kRows);
      if (keys.begin < keys.end) tiles += (keys.end - keys.begin + kRows - 1) / kRows;
    }
    return tiles;
  }

  /// What the strip's lanes see of the block. Where they see different keys, `begin` and `end` get the ends
  /// of what each lane sees, relative to the block.
  StripKeys strip_keys_of(int64_t lane, int vectors, E* begin, E* end) const {
    const int64_t first = lane_begin + lane, last = std::min(lane_end, first + vectors * kLanes);
    const StripKeys keys = strip_keys(task, shape.window_left, group, first, last, block, block_keys, kRows);
    if (keys.begin < keys.end && (keys.all_begin > keys.begin || keys.all_end < round_up(keys.end, kRows))) {
      lane_limits(task, shape.window_left, group, first, last, vectors * kLanes, block, block_keys, begin,
                  end);
    }
    return keys;
  }
};

}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
