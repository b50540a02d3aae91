// Backward: for a tile of query lanes and a block of keys, P and dS are made transposed as in the forward
// kernel and kept, keys down and lanes across; dQ is summed over keys in lanes, dV and dK over lanes in rows
// of head_dim. Key rows get their sums added block by block, in the order of tiles.
#include <cmath>
#include <limits>
#include <vector>

#include "kernel/ahead.h"
#include "kernel/arena.h"
#include "kernel/cpu_tiles.h"
#include "kernel/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/cpu_backward.cc"
// clang-format off
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kernel/lanes-inl.h"
#include "kernel/pack-inl.h"
#include "kernel/row_sums-inl.h"
#include "kernel/strip-inl.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {
namespace {

/// Keys of a block: whole register tiles of every kind. Rows of one head of many lie in few sets of the
/// second-level cache; what is fetched ahead for a block has to fit there.
constexpr int64_t kBlockKeys = 144, kBlockOfManyKeys = 96;
constexpr int64_t kSliceBytes = 24 << 10;
/// Of a tile whose task has no more than 2 · kBlockKeys keys.
constexpr int64_t kFewKeysLanes = 192;

/// Between rows of `lanes` elements: an odd number of cache lines, so that a few columns of all rows spread
/// over all sets of the first-level cache.
template <typename E>
int64_t spread_stride(int64_t lanes) {
  constexpr int64_t kOfLine = 64 / sizeof(E);
  return ((lanes + kOfLine - 1) / kOfLine | 1) * kOfLine;
}

/// All scratch memory of a thread. `wide` is head_dim padded to whole register tiles. Strips are
/// (wide, lanes of the strip), slices (lanes of the tile, columns of the slice).
template <typename E>
struct BackwardBuffers {
  E *q_strips, *dout_strips, *dq_strips;
  E *q_slices, *dout_slices;
  E *lse, *delta;           // per lane; lse in units of log2
  E *k, *v;                 // key and value block as rows
  E* k_columns;             // key block as columns
  E *p, *ds;                // (keys, lanes of the tile), rows key_stride apart
  E *begin, *end, *factor;  // per lane of one strip
  E* rows;                  // a strip as rows: (lanes, wide)
  const char** ahead;       // rows of Ahead
};

template <typename T>
struct BackwardTile : TileLanes<Accumulator<T>> {
  using E = Accumulator<T>;
  using D = hn::ScalableTag<E>;
  using Base = TileLanes<E>;
  using Base::block, Base::block_keys, Base::dim, Base::group, Base::kLanes, Base::kRows, Base::kStripLanes,
      Base::kv_head, Base::lane_begin, Base::lane_end, Base::lanes, Base::padded_lanes, Base::task,
      Base::wide;
  static constexpr int kOuterRows = Tile<E>::kOuterRows;

  const AttentionBackward<T>& args;
  const int64_t key_stride;
  const LaneTile* next;  // that this thread computes after this one; null after the last
  Sums<E>*dq, *dk, *dv;
  BackwardBuffers<E> buffers;
  const T *q, *k, *v, *dout;  // of the task, from its first row on
  const E *lse, *delta;
  Rows<E> keys_of_block, values_of_block;
  bool fresh_queries = false;
  Ahead ahead;

  BackwardTile(const AttentionBackward<T>& args, const LaneTile& tile, const LaneTile* next, Sums<E>* dq,
               Sums<E>* dk, Sums<E>* dv)
      : Base(args.shape, args.tasks[tile.task], tile),
        args(args),
        key_stride(spread_stride<E>(padded_lanes)),
        next(next),
        dq(dq),
        dk(dk),
        dv(dv),
        q(args.q.row(task.q_row, args.shape.heads * dim)),
        k(args.k.row(task.kv_row, args.shape.kv_heads * dim)),
        v(args.v.row(task.kv_row, args.shape.kv_heads * dim)),
        dout(args.dout.row(task.q_row, args.shape.heads * dim)),
        lse(args.lse.row(task.q_row, args.shape.heads)),
        delta(args.delta.row(task.q_row, args.shape.heads)) {
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
      b.p = arena.take<E>(kBlockKeys * key_stride);
      b.ds = arena.take<E>(kBlockKeys * key_stride);
      for (E** limit : {&b.begin, &b.end, &b.factor}) *limit = arena.take<E>(kStripLanes);
      b.rows = arena.take<E>(kStripLanes * wide);
      b.ahead = arena.take<const char*>(4 * kBlockKeys + padded_lanes + 2 * lanes_of(this->next));
      return b;
    });
  }

  /// Of a lane's row as for_rows() says.
  E* row_of_dq(int64_t row) const { return dq->row(task.q_row) + (row - kv_head * group) * dim; }

  /// Of a block of the task's keys.
  static int64_t most_keys(const KernelTask& of) {
    return of.kv_len <= kBlockKeys ? kBlockKeys : kBlockOfManyKeys;
  }

  void run() {
    const KeyRange keys = Base::keys();
    if (keys.begin >= keys.end) return;
    load_lanes();
    strips<&BackwardTile::load_strip>();
    Base::for_blocks(keys, most_keys(task), [&] {
      load_keys();
      look_ahead(keys.end);
      strips<&BackwardTile::differentiate>();
      add_to_keys(buffers.p, buffers.dout_slices, *dv);
      add_to_keys(buffers.ds, buffers.q_slices, *dk);
    });
    std::fill_n(buffers.factor, kStripLanes, static_cast<E>(args.shape.scale));
    fresh_queries = dq->begin_rows(task.q_row + lane_begin / group, task.q_row + (lane_end - 1) / group + 1);
    strips<&BackwardTile::add_to_queries>();
  }

  template <auto kStep>
  HWY_INLINE void strips() {
    Base::template for_strips<kStep>(*this);
  }

  /// Rows of Q, times the scale, and dO as slices; LSE and δ. Lanes that see nothing, whose LSE is infinite,
  /// and those that pad get weights of zero.
  HWY_NOINLINE void load_lanes() {
    for (int64_t c = 0; c < wide;) {
      const int64_t width = slice_vectors<E>((wide - c) / kLanes) * kLanes, filled = std::min(width, dim - c);
      E *q_to = buffers.q_slices + c * padded_lanes, *dout_to = buffers.dout_slices + c * padded_lanes;
      Base::for_rows(0, lanes, [&](int64_t, int64_t row) {
        copy_row(q + row * dim + c, filled, width, static_cast<E>(args.shape.scale), q_to);
        copy_row(dout + row * dim + c, filled, width, E(1), dout_to);
        q_to += width, dout_to += width;
      });
      zero_row((padded_lanes - lanes) * width, q_to);
      zero_row((padded_lanes - lanes) * width, dout_to);
      c += width;
    }
    constexpr E kNothing = std::numeric_limits<E>::infinity();
    Base::for_rows(0, lanes, [&](int64_t lane, int64_t row) {
      buffers.lse[lane] = std::isinf(lse[row]) ? kNothing : lse[row] * static_cast<E>(M_LOG2E);
      buffers.delta[lane] = delta[row];
    });
    std::fill(buffers.lse + lanes, buffers.lse + padded_lanes, kNothing);
    std::fill(buffers.delta + lanes, buffers.delta + padded_lanes, E(0));
  }

  HWY_NOINLINE void load_strip(int64_t lane, int vectors) {
    const int64_t width = vectors * kLanes;
    for (int64_t c = 0; c < wide;) {
      const int64_t columns = slice_vectors<E>((wide - c) / kLanes) * kLanes;
      const int64_t from = c * padded_lanes + lane * columns, to = lane * wide + c * width;
      const E *q[kStripLanes], *dout[kStripLanes];
      for (int64_t i = 0; i < width; ++i) {
        q[i] = buffers.q_slices + from + i * columns;
        dout[i] = buffers.dout_slices + from + i * columns;
      }
      lanes_from_rows(q, width, columns, static_cast<E>(M_LOG2E), buffers.q_strips + to);
      lanes_from_rows(dout, width, columns, E(1), buffers.dout_strips + to);
      c += columns;
    }
    zero_row(width * wide, buffers.dq_strips + lane * wide);
  }

  HWY_NOINLINE void load_keys() {
    const int64_t stride = args.shape.kv_heads * dim, padded = round_up(block_keys, kRows);
    const int64_t at = block * stride + kv_head * dim;
    keys_of_block =
        pack_rows(k + at, stride, block_keys, padded, dim, wide, lanes <= kLanesInPlace, buffers.k);
    values_of_block =
        pack_rows(v + at, stride, block_keys, padded, dim, wide, lanes <= kLanesInPlace, buffers.v);
    pack_columns<kRows>(k + at, stride, block_keys, kBlockKeys, dim, buffers.k_columns);
  }

  /// The block's rows of dK and dV, and the next block's keys and values; in the last one the tile's rows of
  /// dQ and what the next tile begins with.
  HWY_NOINLINE void look_ahead(int64_t end) {
    ahead.begin(buffers.ahead, dim * static_cast<int64_t>(sizeof(E)));
    for (int64_t key = 0; key < block_keys; ++key) {
      ahead.add(dk->row(task.kv_row + block + key));
      ahead.add(dv->row(task.kv_row + block + key));
    }
    const int64_t after = block + most_keys(task);
    if (after < end) {
      add_keys(args, task, kv_head, after, std::min(end, after + most_keys(task)), ahead);
    } else {
      Base::for_rows(0, lanes, [&](int64_t, int64_t row) { ahead.add(row_of_dq(row)); });
      if (next != nullptr) {
        const KernelTask& then = args.tasks[next->task];
        const T *q_row = args.q.row(then.q_row, args.shape.heads * dim),
                *dout_row = args.dout.row(then.q_row, args.shape.heads * dim);
        for_lanes(args.shape, next->kv_head, next->lane_begin, next->lane_end, [&](int64_t, int64_t row) {
          ahead.add(q_row + row * dim);
          ahead.add(dout_row + row * dim);
        });
        add_keys(args, then, next->kv_head, 0, std::min(then.kv_len, most_keys(then)), ahead);
      }
    }
    // Five products of a block's tiles: scores, dP, dQ, dV, dK.
    ahead.spread(5 * Base::tiles_of_strips() * (dim / kBesideTerms));
  }

  HWY_NOINLINE void differentiate(int64_t lane, int vectors) {
    const StripKeys keys = Base::strip_keys_of(lane, vectors, buffers.begin, buffers.end);
    if (keys.begin >= keys.end) return;
    // add_slice() takes these lanes for every tile of kOuterRows keys that holds one that they see.
    constexpr int64_t kBeyond = kOuterRows - 1;
    for (E* panel : {buffers.p, buffers.ds}) {
      for (int64_t key = std::max<int64_t>(0, keys.begin - kBeyond); key < keys.begin; ++key) {
        zero_row(vectors * kLanes, panel + key * key_stride + lane);
      }
      const int64_t end = std::min(round_up(block_keys, kOuterRows), keys.end + kBeyond);
      for (int64_t key = round_up(keys.end, kRows); key < end; ++key) {
        zero_row(vectors * kLanes, panel + key * key_stride + lane);
      }
    }
    for_width(vectors, *this, lane, keys);
  }

  auto fetch() {
    return [this] { ahead.fetch(); };
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
    const Rows<E> k = keys_of_block, v_rows = values_of_block;
    for (int64_t key = keys.begin; key < keys.end; key += kRows) {
      V x[kRows][NV];
      product<false>(d, k.data + key * k.stride, k.stride, q, kWidth, dim, x, fetch());
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const V lse = hn::LoadU(d, buffers.lse + lane + v * kLanes);
        HWY_UNROLL(16)
        for (int r = 0; r < kRows; ++r) x[r][v] = exp2(d, hn::Sub(x[r][v], lse));
      }
      if (key < keys.all_begin || key + kRows > keys.all_end) {
        hide_keys(d, key, buffers.begin, buffers.end, hn::Zero(d), x);
      }
      E* HWY_RESTRICT p = buffers.p + key * key_stride + lane;
      E* HWY_RESTRICT ds = buffers.ds + key * key_stride + lane;
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) hn::StoreU(x[r][v], d, p + r * key_stride + v * kLanes);
      }
      product<false>(d, v_rows.data + key * v_rows.stride, v_rows.stride, dout, kWidth, dim, x, fetch());
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const V delta = hn::LoadU(d, buffers.delta + lane + v * kLanes);
        HWY_UNROLL(16)
        for (int r = 0; r < kRows; ++r) {
          const V weight = hn::LoadU(d, p + r * key_stride + v * kLanes);
          hn::StoreU(hn::Mul(weight, hn::Sub(x[r][v], delta)), d, ds + r * key_stride + v * kLanes);
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
                    buffers.ds + keys.begin * key_stride + lane, key_stride, keys.end - keys.begin, sum,
                    fetch());
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

  /// Lanes of the tile that see any of the block's keys [key, key + most).
  std::pair<int64_t, int64_t> lanes_of_keys(int64_t key, int64_t most) const {
    const int64_t count = std::min(most, block_keys - key);
    if (count <= 0) return {lanes, lanes};
    const int64_t ahead = block + key + task.kv_pos - task.q_pos;  // the first query that sees the first key
    const int64_t first = std::clamp<int64_t>(ahead * group - lane_begin, 0, lanes);
    if (args.shape.window_left >= task.q_pos + task.q_len) return {first, lanes};
    const int64_t last = ahead + count + args.shape.window_left;
    return {first, std::clamp<int64_t>(last * group - lane_begin, first, lanes)};
  }

  /// Sums of the block's keys += weights · slices: (keys, lanes) times (lanes, head_dim).
  void add_to_keys(const E* weights, const E* slices, Sums<E>& sums) {
    const int64_t row = task.kv_row + block, rows = std::min(most_keys(task), task.kv_len - block);
    const bool fresh = sums.begin_rows(row, row + rows);
    for (int64_t c = 0; c < wide;) {
      const int vectors = slice_vectors<E>((wide - c) / kLanes);
      // A run of lanes whose part of the slice stays in the first-level cache for all keys.
      const int64_t run = std::max<int64_t>(48, kSliceBytes / (vectors * kLanes * sizeof(E)) / 48 * 48);
      for (int64_t lane = 0; lane < lanes; lane += run) {
        const SliceRun<E> part{weights,
                               key_stride,
                               slices + c * padded_lanes,
                               sums.row(row) + c,
                               sums.stride,
                               std::min(vectors * kLanes, dim - c),
                               lane,
                               std::min(lanes, lane + run),
                               fresh ? rows : block_keys,
                               fresh && lane == 0};
        add_slice(part, vectors, *this, fetch());
      }
      c += vectors * kLanes;
    }
  }

  HWY_NOINLINE void add_to_queries(int64_t lane, int vectors) {
    const int64_t width = vectors * kLanes, filled = std::min(width, lanes - lane);
    const bool in_place = fresh_queries && dim % kBlock<D> == 0;
    E* rows[kStripLanes];
    for (int64_t i = 0; i < width; ++i) rows[i] = buffers.rows + i * wide;
    if (in_place) Base::for_rows(lane, filled, [&](int64_t i, int64_t row) { rows[i] = row_of_dq(row); });
    rows_from_lanes(buffers.dq_strips + lane * wide, width, round_up(dim, kBlock<D>), buffers.factor, rows);
    if (in_place) return;
    Base::for_rows(lane, filled, [&](int64_t i, int64_t row) {
      E* HWY_RESTRICT to = row_of_dq(row);
      for (int64_t c = 0; c < dim; ++c) to[c] = fresh_queries ? rows[i][c] : to[c] + rows[i][c];
    });
  }
};

/// The sums that the runs of a segment start as.
template <typename E>
void start_sums(const GradientRuns& gradients, int64_t segment, E* result, E* privates, int64_t stride,
                int64_t first_column, int64_t columns, std::vector<Sums<E>>& sums) {
  sums.clear();
  for (int64_t i = gradients.first_of_segment[segment]; i < gradients.first_of_segment[segment + 1]; ++i) {
    const RowTarget& run = gradients.runs[i];
    E* base = run.private_row < 0 ? result : privates + (run.private_row - run.begin) * stride;
    sums.push_back({base + first_column, stride, columns, run.begin, run.end});
  }
}

template <typename T, typename E = Accumulator<T>>
void run_segment(const AttentionBackward<T>& args, const BackwardSchedule& schedule, int64_t segment,
                 int64_t kv_head, const PrivateGradients<E>& privates) {
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads, columns = group * dim;
  const int64_t q_stride = shape.heads * dim, kv_stride = shape.kv_heads * dim;
  thread_local std::vector<Sums<E>> dq, dk, dv;
  start_sums(schedule.q, segment, args.dq, privates.dq, q_stride, kv_head * columns, columns, dq);
  start_sums(schedule.kv, segment, args.dk, privates.dk, kv_stride, kv_head * dim, dim, dk);
  start_sums(schedule.kv, segment, args.dv, privates.dv, kv_stride, kv_head * dim, dim, dv);
  const int64_t most = backward_lanes(shape, sizeof(E));
  thread_local std::vector<LaneTile> tiles;
  thread_local std::vector<const GradientPiece*> pieces;  // of each tile
  tiles.clear(), pieces.clear();
  for (int64_t i = schedule.first_of_segment[segment]; i < schedule.first_of_segment[segment + 1]; ++i) {
    const GradientPiece& piece = schedule.pieces[i];
    if (piece.kv < 0) continue;
    // Of few keys: packing them again costs less than panels that push out what is fetched ahead.
    const bool few_keys = args.tasks[piece.task].kv_len <= 2 * kBlockKeys;
    const int64_t fit = few_keys ? std::min(most, round_up(kFewKeysLanes, group)) : most;
    const int64_t step = std::min(fit, round_up(even_lanes(piece.lane_end - piece.lane_begin, fit), group));
    for (int64_t lane = piece.lane_begin; lane < piece.lane_end; lane += step) {
      tiles.push_back({piece.task, kv_head, lane, std::min(piece.lane_end, lane + step)});
      pieces.push_back(&piece);
    }
  }
  for (size_t i = 0; i < tiles.size(); ++i) {
    const LaneTile* next = i + 1 < tiles.size() ? &tiles[i + 1] : nullptr;
    const GradientPiece& piece = *pieces[i];
    BackwardTile<T>(args, tiles[i], next, &dq[piece.q], &dk[piece.kv], &dv[piece.kv]).run();
  }
  for (auto* sums : {&dq, &dk, &dv}) {
    for (Sums<E>& run : *sums) run.clear_until(run.end);
  }
}

void backward_float(const AttentionBackward<float>& args, const BackwardSchedule& schedule, int64_t segment,
                    int64_t kv_head, const PrivateGradients<float>& privates) {
  run_segment(args, schedule, segment, kv_head, privates);
}
void backward_double(const AttentionBackward<double>& args, const BackwardSchedule& schedule, int64_t segment,
                     int64_t kv_head, const PrivateGradients<double>& privates) {
  run_segment(args, schedule, segment, kv_head, privates);
}
void backward_bfloat16(const AttentionBackward<BFloat16>& args, const BackwardSchedule& schedule,
                       int64_t segment, int64_t kv_head, const PrivateGradients<float>& privates) {
  run_segment(args, schedule, segment, kv_head, privates);
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
  const int64_t group = shape.heads / shape.kv_heads, panel_bytes = second_level_cache_bytes() / 2;
  int64_t lanes = panel_bytes / (5 * shape.head_dim * element_bytes);
  lanes = std::clamp<int64_t>(lanes / 48 * 48, 48, 576);
  return std::max<int64_t>(1, lanes / group) * group;
}

template <>
void backward_segment(const AttentionBackward<float>& args, const BackwardSchedule& schedule, int64_t segment,
                      int64_t kv_head, const PrivateGradients<float>& privates) {
  HWY_DYNAMIC_DISPATCH(backward_float)(args, schedule, segment, kv_head, privates);
}
template <>
void backward_segment(const AttentionBackward<double>& args, const BackwardSchedule& schedule,
                      int64_t segment, int64_t kv_head, const PrivateGradients<double>& privates) {
  HWY_DYNAMIC_DISPATCH(backward_double)(args, schedule, segment, kv_head, privates);
}
template <>
void backward_segment(const AttentionBackward<BFloat16>& args, const BackwardSchedule& schedule,
                      int64_t segment, int64_t kv_head, const PrivateGradients<float>& privates) {
  HWY_DYNAMIC_DISPATCH(backward_bfloat16)(args, schedule, segment, kv_head, privates);
}

}  // namespace distca
#endif
