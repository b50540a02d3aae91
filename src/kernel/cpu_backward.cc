// Backward: for a tile of query lanes and a block of keys, P and dS are made transposed as in the forward
// kernel and kept, keys down and lanes across; dQ is summed over keys in lanes, dV and dK over lanes in rows
// of head_dim. Key rows get their sums added block by block, in the order of tiles.
#include <cmath>
#include <limits>

#include "kernel/arena.h"
#include "kernel/cpu_tiles.h"
#include "kernel/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/cpu_backward.cc"
// clang-format off
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kernel/pack-inl.h"
#include "kernel/strip-inl.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {
namespace {

/// Keys of a block: whole register tiles of every kind.
constexpr int64_t kBlockKeys = 144;
constexpr int64_t kKeyGrain = 24;

/// All scratch memory of a thread. `wide` is head_dim padded to whole register tiles. Strips are
/// (wide, lanes of the strip), slices (lanes of the tile, columns of the slice).
template <typename E>
struct BackwardBuffers {
  E *q_strips, *dout_strips, *dq_strips;
  E *q_slices, *dout_slices;
  E *lse, *delta;           // per lane; lse in units of log2
  E *k, *v;                 // key and value block as rows
  E* k_columns;             // key block as columns
  E *p, *ds;                // (keys, lanes of the tile)
  E *begin, *end, *factor;  // per lane of one strip
  E* rows;                  // a strip as rows: (lanes, wide)
};

/// Vectors of the next slice of head_dim when `left` are left.
template <typename E>
int slice_vectors(int64_t left) {
  constexpr int64_t kMost = Tile<E>::kOuterVectors;
  return static_cast<int>(kMost == 4 && (left == 5 || left == 6) ? 3 : std::min(left, kMost));
}

template <typename T>
struct BackwardTile {
  using E = Accumulator<T>;
  using D = hn::ScalableTag<E>;
  static constexpr int64_t kLanes = Tile<E>::kLanes, kRows = Tile<E>::kRows;
  static constexpr int64_t kStripLanes = Tile<E>::kVectors * kLanes;
  static constexpr int kOuterRows = Tile<E>::kOuterRows;

  const AttentionBackward<T>& args;
  const KernelTask& task;
  const int64_t kv_head, lane_begin, lane_end;
  const int64_t group, dim, wide, lanes, padded_lanes;
  E *dq, *dk, *dv;  // rows of the task's first query and first key, this key/value head
  BackwardBuffers<E> buffers;
  int64_t block = 0, block_keys = 0;

  BackwardTile(const AttentionBackward<T>& args, const GradientPiece& piece, int64_t kv_head,
               int64_t lane_begin, int64_t lane_end, const PrivateGradients<E>& privates)
      : args(args),
        task(args.tasks[piece.task]),
        kv_head(kv_head),
        lane_begin(lane_begin),
        lane_end(lane_end),
        group(args.shape.heads / args.shape.kv_heads),
        dim(args.shape.head_dim),
        wide(round_up(dim, 16)),
        lanes(lane_end - lane_begin),
        padded_lanes(round_up(lanes, kLanes)) {
    const int64_t kv_row = piece.kv.row(task.kv_row), kv_stride = args.shape.kv_heads * dim;
    const int64_t q_row = piece.q.row(task.q_row + piece.lane_begin / group) - piece.lane_begin / group;
    dq = (piece.q.private_row < 0 ? args.dq : privates.dq) + q_row * args.shape.heads * dim;
    dk = (piece.kv.private_row < 0 ? args.dk : privates.dk) + kv_row * kv_stride + kv_head * dim;
    dv = (piece.kv.private_row < 0 ? args.dv : privates.dv) + kv_row * kv_stride + kv_head * dim;
    buffers = Arena::of_thread().place([this](Arena& arena) {
      BackwardBuffers<E> b;
      for (E** panel : {&b.q_strips, &b.dout_strips, &b.dq_strips, &b.q_slices, &b.dout_slices}) {
        *panel = arena.take<E>(padded_lanes * wide);
      }
      b.lse = arena.take<E>(padded_lanes);
      b.delta = arena.take<E>(padded_lanes);
      b.k = arena.take<E>((kBlockKeys + kRows) * wide);
      b.v = arena.take<E>((kBlockKeys + kRows) * wide);
      b.k_columns = arena.take<E>(kBlockKeys * wide);
      b.p = arena.take<E>(kBlockKeys * padded_lanes);
      b.ds = arena.take<E>(kBlockKeys * padded_lanes);
      for (E** limit : {&b.begin, &b.end, &b.factor}) *limit = arena.take<E>(kStripLanes);
      b.rows = arena.take<E>(kStripLanes * wide);
      return b;
    });
  }

  /// (row, head) of a lane, counted from the task's first query.
  int64_t row_of_lane(int64_t lane) const {
    const int64_t at = lane_begin + lane;
    return at / group * args.shape.heads + kv_head * group + at % group;
  }

  void run() {
    const KeyRange low = visible_keys(task, lane_begin / group, args.shape.window_left);
    const KeyRange high = visible_keys(task, (lane_end - 1) / group, args.shape.window_left);
    if (low.begin >= high.end) return;
    load_lanes();
    for_strips<&BackwardTile::load_strip>();
    for (block = low.begin / kBlockKeys * kBlockKeys; block < high.end; block += kBlockKeys) {
      block_keys = std::min(kBlockKeys, high.end - block);
      load_keys();
      for_strips<&BackwardTile::differentiate>();
      add_to_keys(buffers.p, buffers.dout_slices, dv);
      add_to_keys(buffers.ds, buffers.q_slices, dk);
    }
    std::fill_n(buffers.factor, kStripLanes, static_cast<E>(args.shape.scale));
    for_strips<&BackwardTile::add_to_queries>();
  }

  template <auto kStep>
  void for_strips() {
    for (int64_t lane = 0; lane < padded_lanes;) {
      const int vectors = strip_vectors((padded_lanes - lane) / kLanes);
      (this->*kStep)(lane, vectors);
      lane += vectors * kLanes;
    }
  }

  /// Rows of Q, times the scale, and dO as slices; LSE and δ. Lanes that see nothing, whose LSE is infinite,
  /// and those that pad get weights of zero.
  void load_lanes() {
    const int64_t first = task.q_row * args.shape.heads;
    for (int64_t c = 0; c < wide;) {
      const int64_t width = slice_vectors<E>((wide - c) / kLanes) * kLanes, filled = std::min(width, dim - c);
      E *q = buffers.q_slices + c * padded_lanes, *dout = buffers.dout_slices + c * padded_lanes;
      for (int64_t lane = 0; lane < lanes; ++lane, q += width, dout += width) {
        const int64_t at = (first + row_of_lane(lane)) * dim + c;
        copy_row(args.q + at, filled, width, static_cast<E>(args.shape.scale), q);
        copy_row(args.dout + at, filled, width, E(1), dout);
      }
      zero_row((padded_lanes - lanes) * width, q);
      zero_row((padded_lanes - lanes) * width, dout);
      c += width;
    }
    for (int64_t lane = 0; lane < padded_lanes; ++lane) {
      const E lse = lane < lanes ? args.lse[first + row_of_lane(lane)] : std::numeric_limits<E>::infinity();
      buffers.lse[lane] =
          std::isinf(lse) ? std::numeric_limits<E>::infinity() : lse * static_cast<E>(M_LOG2E);
      buffers.delta[lane] = lane < lanes ? args.delta[first + row_of_lane(lane)] : E(0);
    }
  }

  void load_strip(int64_t lane, int vectors) {
    const int64_t width = vectors * kLanes;
    for (int64_t c = 0; c < wide;) {
      const int64_t columns = slice_vectors<E>((wide - c) / kLanes) * kLanes;
      const int64_t from = c * padded_lanes + lane * columns, to = lane * wide + c * width;
      lanes_from_rows(buffers.q_slices + from, columns, width, columns, static_cast<E>(M_LOG2E),
                      buffers.q_strips + to);
      lanes_from_rows(buffers.dout_slices + from, columns, width, columns, E(1), buffers.dout_strips + to);
      c += columns;
    }
    zero_row(width * wide, buffers.dq_strips + lane * wide);
  }

  void load_keys() {
    const int64_t stride = args.shape.kv_heads * dim, padded = round_up(block_keys, kRows);
    const int64_t at = (task.kv_row + block) * stride + kv_head * dim;
    pack_rows(args.k + at, stride, block_keys, padded, dim, wide, buffers.k);
    pack_rows(args.v + at, stride, block_keys, padded, dim, wide, buffers.v);
    pack_columns<kRows>(args.k + at, stride, block_keys, kBlockKeys, dim, buffers.k_columns);
  }

  void differentiate(int64_t lane, int vectors) {
    const int64_t first = lane_begin + lane, last = std::min(lane_end, first + vectors * kLanes);
    const StripKeys keys =
        strip_keys(task, args.shape.window_left, group, first, last, block, block_keys, kRows);
    const int64_t begin = std::min(keys.begin, keys.end), end = round_up(keys.end, kRows);
    for (E* panel : {buffers.p, buffers.ds}) {
      for (int64_t key = 0; key < begin; ++key) zero_row(vectors * kLanes, panel + key * padded_lanes + lane);
      for (int64_t key = end; key < round_up(block_keys, kKeyGrain); ++key) {
        zero_row(vectors * kLanes, panel + key * padded_lanes + lane);
      }
    }
    if (keys.begin >= keys.end) return;
    if (keys.all_begin > keys.begin || keys.all_end < end) {
      lane_limits(task, args.shape.window_left, group, first, last, vectors * kLanes, block, block_keys,
                  buffers.begin, buffers.end);
    }
    for_width(vectors, *this, lane, keys);
  }

  template <int NV>
  HWY_NOINLINE void run(int64_t lane, StripKeys keys) {
    weigh<NV>(lane, keys);
    sum_keys<NV>(lane, keys);
  }

  /// P = exp2(scores − LSE) and dS = P ∘ (V dOᵀ − δ) of a strip.
  template <int NV>
  HWY_INLINE void weigh(int64_t lane, const StripKeys& keys) {
    const D d;
    using V = hn::Vec<D>;
    constexpr int64_t kWidth = NV * kLanes;
    const E *q = buffers.q_strips + lane * wide, *dout = buffers.dout_strips + lane * wide;
    for (int64_t key = keys.begin; key < keys.end; key += kRows) {
      V x[kRows][NV];
      product<false>(d, buffers.k + key * wide, wide, q, kWidth, dim, x);
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const V lse = hn::LoadU(d, buffers.lse + lane + v * kLanes);
        HWY_UNROLL(16)
        for (int r = 0; r < kRows; ++r) x[r][v] = exp2(d, hn::Sub(x[r][v], lse));
      }
      if (key < keys.all_begin || key + kRows > keys.all_end) {
        hide_keys(d, key, buffers.begin, buffers.end, hn::Zero(d), x);
      }
      E* HWY_RESTRICT p = buffers.p + key * padded_lanes + lane;
      E* HWY_RESTRICT ds = buffers.ds + key * padded_lanes + lane;
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) hn::StoreU(x[r][v], d, p + r * padded_lanes + v * kLanes);
      }
      product<false>(d, buffers.v + key * wide, wide, dout, kWidth, dim, x);
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const V delta = hn::LoadU(d, buffers.delta + lane + v * kLanes);
        HWY_UNROLL(16)
        for (int r = 0; r < kRows; ++r) {
          const V weight = hn::LoadU(d, p + r * padded_lanes + v * kLanes);
          hn::StoreU(hn::Mul(weight, hn::Sub(x[r][v], delta)), d, ds + r * padded_lanes + v * kLanes);
        }
      }
    }
  }

  /// dQᵀ += Kᵀ dS of a strip.
  template <int NV>
  HWY_INLINE void sum_keys(int64_t lane, const StripKeys& keys) {
    const D d;
    using V = hn::Vec<D>;
    constexpr int64_t kWidth = NV * kLanes;
    for (int64_t c = 0; c < dim; c += kRows) {
      V sum[kRows][NV];
      product<true>(d, buffers.k_columns + c * kBlockKeys + keys.begin * kRows, 0,
                    buffers.ds + keys.begin * padded_lanes + lane, padded_lanes, keys.end - keys.begin, sum);
      E* HWY_RESTRICT to = buffers.dq_strips + lane * wide + c * kWidth;
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) {
          E* at = to + r * kWidth + v * kLanes;
          hn::StoreU(hn::Add(hn::LoadU(d, at), sum[r][v]), d, at);
        }
      }
    }
  }

  /// Lanes of the tile that see any of keys [key, key + count) of the block.
  std::pair<int64_t, int64_t> lanes_of_keys(int64_t key, int64_t count) const {
    const int64_t ahead = block + key + task.kv_pos - task.q_pos;  // the first query that sees the first key
    const int64_t first = std::clamp<int64_t>(ahead * group - lane_begin, 0, lanes);
    if (args.shape.window_left >= task.q_pos + task.q_len) return {first, lanes};
    const int64_t last = ahead + count + args.shape.window_left;
    return {first, std::clamp<int64_t>(last * group - lane_begin, first, lanes)};
  }

  /// to += weights · slices for the keys of the block: (keys, lanes) times (lanes, head_dim).
  void add_to_keys(const E* weights, const E* slices, E* to) {
    for (int64_t c = 0; c < wide;) {
      const int vectors = slice_vectors<E>((wide - c) / kLanes);
      const E* slice = slices + c * padded_lanes;
      if (vectors == 4) {
        if constexpr (Tile<E>::kOuterVectors == 4) add_slice<4>(weights, slice, c, to);
      } else if (vectors == 3) {
        if constexpr (Tile<E>::kOuterVectors == 4) add_slice<3>(weights, slice, c, to);
      } else if (vectors == 2) {
        add_slice<2>(weights, slice, c, to);
      } else {
        add_slice<1>(weights, slice, c, to);
      }
      c += vectors * kLanes;
    }
  }

  template <int NV>
  HWY_NOINLINE void add_slice(const E* HWY_RESTRICT weights, const E* HWY_RESTRICT slice, int64_t column,
                              E* to) {
    const D d;
    using V = hn::Vec<D>;
    constexpr int64_t kWidth = NV * kLanes;
    const int64_t stride = args.shape.kv_heads * dim, filled = std::min(kWidth, dim - column);
    for (int64_t key = 0; key < block_keys; key += kOuterRows) {
      const auto [first, last] = lanes_of_keys(key, kOuterRows);
      if (first >= last) continue;
      V sum[kOuterRows][NV];
      product<false>(d, weights + key * padded_lanes + first, padded_lanes, slice + first * kWidth, kWidth,
                     last - first, sum);
      const int64_t rows = std::min<int64_t>(kOuterRows, block_keys - key);
      E* HWY_RESTRICT out = to + (block + key) * stride + column;
      if (filled == kWidth && rows == kOuterRows) {
        HWY_UNROLL(16)
        for (int r = 0; r < kOuterRows; ++r) {
          HWY_UNROLL(16)
          for (int v = 0; v < NV; ++v) {
            E* at = out + r * stride + v * kLanes;
            hn::StoreU(hn::Add(hn::LoadU(d, at), sum[r][v]), d, at);
          }
        }
        continue;
      }
      HWY_ALIGN E rest[kOuterRows * kWidth];
      HWY_UNROLL(16)
      for (int r = 0; r < kOuterRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) hn::Store(sum[r][v], d, rest + r * kWidth + v * kLanes);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < filled; ++i) out[r * stride + i] += rest[r * kWidth + i];
      }
    }
  }

  void add_to_queries(int64_t lane, int vectors) {
    const int64_t width = vectors * kLanes, filled = std::min(width, lanes - lane);
    rows_from_lanes(buffers.dq_strips + lane * wide, width, wide, buffers.factor, buffers.rows, wide);
    for (int64_t i = 0; i < filled; ++i) {
      E* HWY_RESTRICT to = dq + row_of_lane(lane + i) * dim;
      const E* HWY_RESTRICT row = buffers.rows + i * wide;
      for (int64_t c = 0; c < dim; ++c) to[c] += row[c];
    }
  }
};

template <typename T>
void run_pieces(const AttentionBackward<T>& args, std::span<const GradientPiece> pieces, int64_t kv_head,
                const PrivateGradients<Accumulator<T>>& privates) {
  const int64_t most = backward_lanes(args.shape, sizeof(Accumulator<T>));
  for (const GradientPiece& piece : pieces) {
    for (int64_t lane = piece.lane_begin; lane < piece.lane_end; lane += most) {
      const int64_t end = std::min(piece.lane_end, lane + most);
      BackwardTile<T>(args, piece, kv_head, lane, end, privates).run();
    }
  }
}

void backward_float(const AttentionBackward<float>& args, std::span<const GradientPiece> pieces,
                    int64_t kv_head, const PrivateGradients<float>& privates) {
  run_pieces(args, pieces, kv_head, privates);
}
void backward_double(const AttentionBackward<double>& args, std::span<const GradientPiece> pieces,
                     int64_t kv_head, const PrivateGradients<double>& privates) {
  run_pieces(args, pieces, kv_head, privates);
}
void backward_bfloat16(const AttentionBackward<BFloat16>& args, std::span<const GradientPiece> pieces,
                       int64_t kv_head, const PrivateGradients<float>& privates) {
  run_pieces(args, pieces, kv_head, privates);
}

}  // namespace
}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace distca {

HWY_EXPORT(backward_float);
HWY_EXPORT(backward_double);
HWY_EXPORT(backward_bfloat16);

int64_t backward_lanes(const AttentionShape& shape, int64_t element_bytes) {
  constexpr int64_t kPanelBytes = 512 << 10;
  const int64_t lanes = kPanelBytes / (5 * shape.head_dim * element_bytes);
  return std::clamp<int64_t>(lanes / 48 * 48, 48, 192);
}

template <>
void backward_pieces(const AttentionBackward<float>& args, std::span<const GradientPiece> pieces,
                     int64_t kv_head, const PrivateGradients<float>& privates) {
  HWY_DYNAMIC_DISPATCH(backward_float)(args, pieces, kv_head, privates);
}
template <>
void backward_pieces(const AttentionBackward<double>& args, std::span<const GradientPiece> pieces,
                     int64_t kv_head, const PrivateGradients<double>& privates) {
  HWY_DYNAMIC_DISPATCH(backward_double)(args, pieces, kv_head, privates);
}
template <>
void backward_pieces(const AttentionBackward<BFloat16>& args, std::span<const GradientPiece> pieces,
                     int64_t kv_head, const PrivateGradients<float>& privates) {
  HWY_DYNAMIC_DISPATCH(backward_bfloat16)(args, pieces, kv_head, privates);
}

}  // namespace distca
#endif
