// Copies between rows of (tokens, heads, head_dim) tensors and the panels that register tiles read: converted
// to the arithmetic type, padded with zeros, transposed where lanes are queries.
#if defined(DISTCA_KERNEL_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DISTCA_KERNEL_PACK_INL_H_
#undef DISTCA_KERNEL_PACK_INL_H_
#else
#define DISTCA_KERNEL_PACK_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernel/attention.h"
#include "kernel/bfloat16.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Lanes(d) values of storage type T in the arithmetic type.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_values(D d, const T* from) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::LoadU(d16, &from->bits);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  } else {
    return hn::LoadU(d, from);
  }
}

/// to[0, padded) = factor · from[0, dim), then zeros.
template <typename T, typename E = Accumulator<T>>
HWY_INLINE void copy_row(const T* HWY_RESTRICT from, int64_t dim, int64_t padded, E factor,
                         E* HWY_RESTRICT to) {
  const hn::ScalableTag<E> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const auto scale = hn::Set(d, factor);
  int64_t c = 0;
  for (; c + kLanes <= dim; c += kLanes) hn::StoreU(hn::Mul(load_values(d, from + c), scale), d, to + c);
  for (; c < dim; ++c) to[c] = load(from[c]) * factor;
  for (; c < padded; ++c) to[c] = 0;
}

template <typename E>
HWY_INLINE void zero_row(int64_t count, E* to) {
  const hn::ScalableTag<E> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) hn::StoreU(hn::Zero(d), d, to + c);
  for (; c < count; ++c) to[c] = 0;
}

/// Rows of a panel, `stride` elements apart.
template <typename E>
struct Rows {
  const E* data = nullptr;
  int64_t stride = 0;
};

/// Rows `stride` apart, `padded_rows` of them can be read: the rows themselves where that is so already and
/// `in_place`, else
/// a contiguous copy in `memory` (padded_rows, padded).
template <typename T, typename E = Accumulator<T>>
HWY_INLINE Rows<E> pack_rows(const T* from, int64_t stride, int64_t rows, int64_t padded_rows, int64_t dim,
                             int64_t padded, bool in_place, E* memory) {
  if constexpr (std::is_same_v<T, E>) {
    if (in_place && rows == padded_rows) return {from, stride};
  }
  for (int64_t r = 0; r < rows; ++r) copy_row(from + r * stride, dim, padded, E(1), memory + r * padded);
  zero_row((padded_rows - rows) * padded, memory + rows * padded);
  return {memory, padded};
}

/// The same rows as panels of R columns, each (panel_rows, R) and contiguous; the last is padded with zeros.
template <int R, typename T, typename E = Accumulator<T>>
HWY_INLINE void pack_columns(const T* HWY_RESTRICT from, int64_t stride, int64_t rows, int64_t panel_rows,
                             int64_t dim, E* HWY_RESTRICT to) {
  const hn::CappedTag<E, R> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = from + r * stride;
    E* out = to + r * R;
    int64_t c = 0;
    for (; c + R <= dim; c += R, out += panel_rows * R) {
      for (int64_t i = 0; i < R; i += kLanes) hn::StoreU(load_values(d, row + c + i), d, out + i);
    }
    if (c == dim) continue;
    for (int64_t i = 0; i < R; ++i) out[i] = c + i < dim ? load(row[c + i]) : E(0);
  }
}

/// Elements of a block of at most 16 bytes: what squares are transposed in.
template <class D>
inline constexpr int64_t kBlock = (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) < 16)
                                      ? 1
                                      : 16 / static_cast<int64_t>(sizeof(hn::TFromD<D>));

/// A vector of blocks, block b from rows[b · kBlock] + column.
template <class D, typename E = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_blocks(D d, const E* const* rows, int64_t column) {
  if constexpr (hn::MaxLanes(d) * sizeof(E) <= 16) {
    return hn::LoadU(d, rows[0] + column);
  } else {
#if HWY_TARGET != HWY_SCALAR
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, rows + hn::MaxLanes(half), column),
                       load_blocks(half, rows, column));
#endif
  }
}

template <class D, typename E = hn::TFromD<D>>
HWY_INLINE void store_blocks(hn::Vec<D> x, D d, E* const* rows, int64_t column) {
  if constexpr (hn::MaxLanes(d) * sizeof(E) <= 16) {
    hn::StoreU(x, d, rows[0] + column);
  } else {
#if HWY_TARGET != HWY_SCALAR
    const hn::Half<D> half;
    store_blocks(hn::LowerHalf(half, x), half, rows, column);
    store_blocks(hn::UpperHalf(half, x), half, rows + hn::MaxLanes(half), column);
#endif
  }
}

#if HWY_TARGET == HWY_SCALAR

template <class D, class V>
HWY_INLINE void transpose_blocks(D, V (&)[1]) {}

#else

/// Transposes the square of elements that equal 16-byte blocks of the vectors form.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void transpose_blocks(D d, V (&x)[16 / sizeof(hn::TFromD<D>)]) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const V lower = hn::InterleaveLower(d, x[0], x[1]);
    x[1] = hn::InterleaveUpper(d, x[0], x[1]);
    x[0] = lower;
  } else {
    const hn::Repartition<double, D> dd;
    const auto l01 = hn::BitCast(dd, hn::InterleaveLower(d, x[0], x[1]));
    const auto u01 = hn::BitCast(dd, hn::InterleaveUpper(d, x[0], x[1]));
    const auto l23 = hn::BitCast(dd, hn::InterleaveLower(d, x[2], x[3]));
    const auto u23 = hn::BitCast(dd, hn::InterleaveUpper(d, x[2], x[3]));
    x[0] = hn::BitCast(d, hn::InterleaveLower(dd, l01, l23));
    x[1] = hn::BitCast(d, hn::InterleaveUpper(dd, l01, l23));
    x[2] = hn::BitCast(d, hn::InterleaveLower(dd, u01, u23));
    x[3] = hn::BitCast(d, hn::InterleaveUpper(dd, u01, u23));
  }
}

#endif

/// Squares of columns that are transposed together: addresses of rows are read once for all of them.
inline constexpr int kSquares = kManyRegisters ? 4 : 2;

/// to[i · lanes + lane] = scale · rows[lane][column + i] for a vector of lanes and i < N · kBlock.
template <int N, class D, class V = hn::Vec<D>, typename E = hn::TFromD<D>>
HWY_INLINE void lanes_from_squares(D d, const E* const* rows, int64_t column, V scale, int64_t lanes, E* to) {
  constexpr int64_t kSide = kBlock<D>;
  V x[N][kSide];
  HWY_UNROLL(16)
  for (int64_t i = 0; i < kSide; ++i) {
    HWY_UNROLL(16)
    for (int n = 0; n < N; ++n) x[n][i] = load_blocks(d, rows + i, column + n * kSide);
  }
  HWY_UNROLL(16)
  for (int n = 0; n < N; ++n) {
    transpose_blocks(d, x[n]);
    HWY_UNROLL(16)
    for (int64_t i = 0; i < kSide; ++i) hn::StoreU(hn::Mul(x[n][i], scale), d, to + (n * kSide + i) * lanes);
  }
}

/// rows[lane][column + i] = scale[lane] · from[i · lanes + lane] for a vector of lanes and i < N · kBlock.
template <int N, class D, class V = hn::Vec<D>, typename E = hn::TFromD<D>>
HWY_INLINE void squares_from_lanes(D d, const E* from, int64_t lanes, V scale, E* const* rows,
                                   int64_t column) {
  constexpr int64_t kSide = kBlock<D>;
  V x[N][kSide];
  HWY_UNROLL(16)
  for (int n = 0; n < N; ++n) {
    HWY_UNROLL(16)
    for (int64_t i = 0; i < kSide; ++i)
      x[n][i] = hn::Mul(hn::LoadU(d, from + (n * kSide + i) * lanes), scale);
    transpose_blocks(d, x[n]);
  }
  HWY_UNROLL(16)
  for (int64_t i = 0; i < kSide; ++i) {
    HWY_UNROLL(16)
    for (int n = 0; n < N; ++n) store_blocks(x[n][i], d, rows + i, column + n * kSide);
  }
}

/// to[c · lanes + lane] = factor · rows[lane][c] for c < dim, a multiple of kBlock.
template <typename E>
HWY_INLINE void lanes_from_rows(const E* const* rows, int64_t lanes, int64_t dim, E factor,
                                E* HWY_RESTRICT to) {
  const hn::ScalableTag<E> d;
  constexpr int64_t kLanes = hn::MaxLanes(d), kSide = kBlock<decltype(d)>;
  const auto scale = hn::Set(d, factor);
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    int64_t c = 0;
    for (; c + kSquares * kSide <= dim; c += kSquares * kSide) {
      lanes_from_squares<kSquares>(d, rows + lane, c, scale, lanes, to + c * lanes + lane);
    }
    for (; c < dim; c += kSide) {
      lanes_from_squares<1>(d, rows + lane, c, scale, lanes, to + c * lanes + lane);
    }
  }
}

/// rows[lane][c] = factors[lane] · from[c · lanes + lane] for c < dim, a multiple of kBlock.
template <typename E>
HWY_INLINE void rows_from_lanes(const E* HWY_RESTRICT from, int64_t lanes, int64_t dim, const E* factors,
                                E* const* rows) {
  const hn::ScalableTag<E> d;
  constexpr int64_t kLanes = hn::MaxLanes(d), kSide = kBlock<decltype(d)>;
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    const auto scale = hn::LoadU(d, factors + lane);
    int64_t c = 0;
    for (; c + kSquares * kSide <= dim; c += kSquares * kSide) {
      squares_from_lanes<kSquares>(d, from + c * lanes + lane, lanes, scale, rows + lane, c);
    }
    for (; c < dim; c += kSide) {
      squares_from_lanes<1>(d, from + c * lanes + lane, lanes, scale, rows + lane, c);
    }
  }
}

/// to[0, dim) = from[0, dim) in the storage type.
template <typename T, typename E = Accumulator<T>>
HWY_INLINE void store_row(const E* HWY_RESTRICT from, int64_t dim, T* HWY_RESTRICT to) {
  for (int64_t c = 0; c < dim; ++c) to[c] = store<T>(from[c]);
}

}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
