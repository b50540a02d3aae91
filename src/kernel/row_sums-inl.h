// Sums of gradients in rows of head_dim, and the products that add to them: (keys, lanes) times (lanes, a
// slice of head_dim).
#if defined(DISTCA_KERNEL_ROW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DISTCA_KERNEL_ROW_SUMS_INL_H_
#undef DISTCA_KERNEL_ROW_SUMS_INL_H_
#else
#define DISTCA_KERNEL_ROW_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernel/pack-inl.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A run of rows of one gradient, for one key/value head, that a segment sums into. Rows before `done` hold
/// sums; the others hold anything.
template <typename E>
struct Sums {
  E* data = nullptr;   // row 0 of the result, whether or not it is part of the run
  int64_t stride = 0;  // between rows
  int64_t columns = 0;
  int64_t done = 0, end = 0;

  E* row(int64_t r) const { return data + r * stride; }

  void clear_until(int64_t row) {
    for (; done < row; ++done) zero_row(columns, data + done * stride);
  }

  /// Rows [first, last) will get a sum each. True where they have to be written, false where added to.
  bool begin_rows(int64_t first, int64_t last) {
    const bool fresh = done <= first;
    clear_until(fresh ? first : last);
    done = std::max(done, last);
    return fresh;
  }
};

/// Vectors of the next slice of head_dim when `left` are left.
template <typename E>
int slice_vectors(int64_t left) {
  constexpr int64_t kMost = Tile<E>::kOuterVectors;
  return static_cast<int>(kMost == 4 && (left == 5 || left == 6) ? 3 : std::min(left, kMost));
}

/// A run of lanes of one slice of head_dim, and the sums of a block's keys that it adds to.
template <typename E>
struct SliceRun {
  const E* weights;  // (keys, lanes)
  int64_t weight_stride;
  const E* slice;  // (lanes, columns padded to whole vectors)
  E* to;           // of the block's first key
  int64_t stride, columns;
  int64_t lane_begin, lane_end;
  int64_t rows;
  bool fresh;  // written rather than added to
};

/// Sums of (R, width) in memory, of which `rows` and the slice's columns count, to rows at `out`.
template <typename E>
void add_rest(const SliceRun<E>& part, const E* rest, int64_t width, int64_t rows, E* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < part.columns; ++i) {
      E& to = out[r * part.stride + i];
      to = part.fresh ? rest[r * width + i] : to + rest[r * width + i];
    }
  }
}

/// For each kOuterRows keys, the lanes that tile.lanes_of_keys(key, kOuterRows) says.
template <int NV, typename E, class Tiles, class Beside>
HWY_NOINLINE void add_vectors(const SliceRun<E> part, const Tiles& tile, Beside beside) {
  const hn::ScalableTag<E> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLanes = hn::MaxLanes(d), kWidth = NV * kLanes;
  constexpr int kRows = Tile<E>::kOuterRows;
  for (int64_t key = 0; key < part.rows; key += kRows) {
    auto [first, last] = tile.lanes_of_keys(key, kRows);
    first = std::max(first, part.lane_begin);
    last = std::min(last, part.lane_end);
    if (first >= last && !part.fresh) continue;
    V sum[kRows][NV];
    product<false>(d, part.weights + key * part.weight_stride + first, part.weight_stride,
                   part.slice + first * kWidth, kWidth, last - first, sum, beside);
    const int64_t rows = std::min<int64_t>(kRows, part.rows - key);
    E* HWY_RESTRICT out = part.to + key * part.stride;
    if (part.columns < kWidth || rows < kRows) {
      HWY_ALIGN E rest[kRows * kWidth];
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) hn::Store(sum[r][v], d, rest + r * kWidth + v * kLanes);
      }
      add_rest(part, rest, kWidth, rows, out);
      continue;
    }
    if (!part.fresh) {
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) {
          sum[r][v] = hn::Add(hn::LoadU(d, out + r * part.stride + v * kLanes), sum[r][v]);
        }
      }
    }
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) hn::StoreU(sum[r][v], d, out + r * part.stride + v * kLanes);
    }
  }
}

/// to += weights · slice, for slice_vectors() vectors.
template <typename E, class Tiles, class Beside>
HWY_INLINE void add_slice(const SliceRun<E>& part, int vectors, const Tiles& tile, Beside beside) {
  if (vectors == 4) {
    if constexpr (Tile<E>::kOuterVectors == 4) add_vectors<4>(part, tile, beside);
  } else if (vectors == 3) {
    if constexpr (Tile<E>::kOuterVectors == 4) add_vectors<3>(part, tile, beside);
  } else if (vectors == 2) {
    add_vectors<2>(part, tile, beside);
  } else {
    add_vectors<1>(part, tile, beside);
  }
}

}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
