// Forward: scores are computed transposed, keys down and query lanes across, so that maximum and sum run down
// the registers and keys are read by broadcast. Blocks of keys are aligned to the task's first key and a key
// that a lane doesn't see adds an exact zero: a row's bits depend on nothing but its own keys.
#include <cmath>
#include <limits>

#include "kernel/ahead.h"
#include "kernel/arena.h"
#include "kernel/cpu_tiles.h"
#include "kernel/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/cpu_forward.cc"
// clang-format off
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernel/lanes-inl.h"
#include "kernel/pack-inl.h"
#include "kernel/strip-inl.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {
namespace {

/// Keys of a block: its scores stay in the first-level cache for one strip.
constexpr int64_t kBlockKeys = 128;

/// All scratch memory of a thread. `wide` is head_dim padded to whole register tiles.
template <typename E>
struct ForwardBuffers {
  E *q, *o;                  // per strip: (wide, lanes of the strip)
  E *max, *sum;              // per lane, of scores times log2(e)
  E *k, *v;                  // key block as rows, value block as columns
  E* p;                      // scores, then weights, of one strip: (keys, lanes)
  E *begin, *end, *rescale;  // per lane of one strip
  E* rows;                   // a strip as rows: (lanes, wide)
  bool* started;             // per strip: o holds something
  const char** ahead;        // rows of Ahead
};

template <typename T>
struct ForwardTile : TileLanes<Accumulator<T>> {
  using E = Accumulator<T>;
  using D = hn::ScalableTag<E>;
  using Base = TileLanes<E>;
  using Base::block, Base::block_keys, Base::dim, Base::kLanes, Base::kRows, Base::kStripLanes, Base::kv_head,
      Base::lanes, Base::padded_lanes, Base::task, Base::wide;
  static constexpr E kEmpty = -std::numeric_limits<E>::infinity();

  const AttentionForward<T>& args;
  const LaneTile* next;  // that this thread computes after this one; null after the last
  ForwardBuffers<E> buffers;
  const T *q, *k, *v;  // of the task, from its first row on
  T* o;
  E* lse;
  Rows<E> keys_of_block;
  Ahead ahead;

  ForwardTile(const AttentionForward<T>& args, const LaneTile& tile, const LaneTile* next)
      : Base(args.shape, args.tasks[tile.task], tile),
        args(args),
        next(next),
        q(args.q.row(task.q_row, args.shape.heads * dim)),
        k(args.k.row(task.kv_row, args.shape.kv_heads * dim)),
        v(args.v.row(task.kv_row, args.shape.kv_heads * dim)),
        o(args.o.row(task.o_row, args.shape.heads * dim)),
        lse(args.lse.row(task.o_row, args.shape.heads)) {
    buffers = Arena::of_thread().place([this](Arena& arena) {
      ForwardBuffers<E> b;
      b.q = arena.take<E>(padded_lanes * wide);
      b.o = arena.take<E>(padded_lanes * wide);
      b.max = arena.take<E>(padded_lanes);
      b.sum = arena.take<E>(padded_lanes);
      b.k = arena.take<E>((kBlockKeys + kRows) * wide);
      b.v = arena.take<E>(kBlockKeys * wide);
      b.p = arena.take<E>((kBlockKeys + kRows) * kStripLanes);
      b.begin = arena.take<E>(kStripLanes);
      b.end = arena.take<E>(kStripLanes);
      b.rescale = arena.take<E>(kStripLanes);
      b.rows = arena.take<E>(kStripLanes * wide);
      b.started = arena.take<bool>(padded_lanes / kLanes);
      b.ahead = arena.take<const char*>(2 * kBlockKeys + padded_lanes + lanes_of(this->next));
      return b;
    });
  }

  void run() {
    const KeyRange keys = Base::keys();
    strips<&ForwardTile::load_queries>();
    Base::for_blocks(keys, kBlockKeys, [&] {
      load_keys();
      look_ahead(keys);
      strips<&ForwardTile::attend>();
    });
    strips<&ForwardTile::finish>();
  }

  template <auto kStep>
  HWY_INLINE void strips() {
    Base::template for_strips<kStep>(*this);
  }

  /// Rows of Q and O can be read and written in place, else they are converted or padded in scratch memory.
  bool rows_in_place() const { return std::is_same_v<T, E> && dim % kBlock<D> == 0; }

  HWY_NOINLINE void load_queries(int64_t lane, int vectors) {
    const int64_t width = vectors * kLanes, filled = std::min(width, lanes - lane);
    const E* rows[kStripLanes];
    Base::for_rows(lane, filled, [&](int64_t i, int64_t row) {
      if constexpr (std::is_same_v<T, E>) {
        rows[i] = q + row * dim;
        if (rows_in_place()) return;
      }
      rows[i] = buffers.rows + i * wide;
      copy_row(q + row * dim, dim, wide, E(1), buffers.rows + i * wide);
    });
    for (int64_t i = filled; i < width; ++i) {
      rows[i] = buffers.rows + i * wide;
      zero_row(wide, buffers.rows + i * wide);
    }
    const E factor = static_cast<E>(args.shape.scale * M_LOG2E);
    lanes_from_rows(rows, width, round_up(dim, kBlock<D>), factor, buffers.q + lane * wide);
    std::fill_n(buffers.max + lane, width, kEmpty);
    std::fill_n(buffers.sum + lane, width, E(0));
    buffers.started[lane / kLanes] = false;
  }

  HWY_NOINLINE void load_keys() {
    const int64_t stride = args.shape.kv_heads * dim;
    const int64_t at = block * stride + kv_head * dim;
    keys_of_block = pack_rows(k + at, stride, block_keys, round_up(block_keys, kRows), dim, wide,
                              lanes <= kLanesInPlace, buffers.k);
    pack_columns<kRows>(v + at, stride, block_keys, kBlockKeys, dim, buffers.v);
  }

  void attend(int64_t lane, int vectors) {
    const StripKeys keys = Base::strip_keys_of(lane, vectors, buffers.begin, buffers.end);
    if (keys.begin >= keys.end) return;
    for_width(vectors, *this, lane, keys);
  }

  /// The next block's keys and values, before the last block the tile's rows of O, in it what the next tile
  /// begins with.
  HWY_NOINLINE void look_ahead(const KeyRange& keys) {
    ahead.begin(buffers.ahead, dim * static_cast<int64_t>(sizeof(T)));
    const int64_t after = block + kBlockKeys;
    const bool last = after >= keys.end;
    if (last ? block <= keys.begin : after + kBlockKeys >= keys.end) {
      Base::for_rows(0, lanes, [&](int64_t, int64_t row) { ahead.add(o + row * dim); });
    }
    if (!last) {
      add_keys(args, task, kv_head, after, std::min(keys.end, after + kBlockKeys), ahead);
    } else if (next != nullptr) {
      const KernelTask& then = args.tasks[next->task];
      const T* then_q = args.q.row(then.q_row, args.shape.heads * dim);
      for_lanes(args.shape, next->kv_head, next->lane_begin, next->lane_end,
                [&](int64_t, int64_t row) { ahead.add(then_q + row * dim); });
      add_keys(args, then, next->kv_head, 0, std::min(then.kv_len, kBlockKeys), ahead);
    }
    ahead.spread(2 * Base::tiles_of_strips() * (dim / kBesideTerms));
  }

  auto fetch() {
    return [this] { ahead.fetch(); };
  }

  template <int NV>
  HWY_NOINLINE void run(int64_t lane, StripKeys keys) {
    score<NV>(lane, keys);
    weigh<NV>(lane, keys);
    bool& started = buffers.started[lane / kLanes];
    if (started) {
      sum_values<NV, true>(lane, keys);
    } else {
      sum_values<NV, false>(lane, keys);
    }
    started = true;
  }

  /// p = scores in units of log2, hidden ones −inf; rescale and max are brought up to date.
  template <int NV>
  HWY_INLINE void score(int64_t lane, const StripKeys& keys) {
    const D d;
    using V = hn::Vec<D>;
    constexpr int64_t kWidth = NV * kLanes;
    const V hidden = hn::Set(d, kEmpty);
    V max[NV];
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) max[v] = hidden;
    for (int64_t key = keys.begin; key < keys.end; key += kRows) {
      V s[kRows][NV];
      product<false>(d, keys_of_block.data + key * keys_of_block.stride, keys_of_block.stride,
                     buffers.q + lane * wide, kWidth, dim, s, fetch());
      if (key < keys.all_begin || key + kRows > keys.all_end) {
        hide_keys(d, key, buffers.begin, buffers.end, hidden, s);
      }
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) {
          max[v] = hn::Max(max[v], s[r][v]);
          hn::StoreU(s[r][v], d, buffers.p + (key + r) * kWidth + v * kLanes);
        }
      }
    }
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) {
      E* at = buffers.max + lane + v * kLanes;
      const V before = hn::LoadU(d, at), after = hn::Max(before, max[v]);
      hn::StoreU(after, d, at);
      hn::StoreU(exp2(d, hn::Sub(before, finite(d, after))), d, buffers.rescale + v * kLanes);
    }
  }

  /// x, or 0 where it is −inf: lanes that have seen no key yet.
  template <class V>
  static HWY_INLINE V finite(D d, V x) {
    return hn::IfThenElse(hn::Eq(x, hn::Set(d, kEmpty)), hn::Zero(d), x);
  }

  /// p = exp2(p − max); sum is brought up to date.
  template <int NV>
  HWY_INLINE void weigh(int64_t lane, const StripKeys& keys) {
    const D d;
    using V = hn::Vec<D>;
    constexpr int64_t kWidth = NV * kLanes;
    V max[NV], sum[NV];
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) {
      max[v] = finite(d, hn::LoadU(d, buffers.max + lane + v * kLanes));
      sum[v] = hn::Zero(d);
    }
    E* HWY_RESTRICT p = buffers.p + keys.begin * kWidth;
    for (int64_t key = keys.begin; key < keys.end; ++key, p += kWidth) {
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) {
        const V weight = exp2(d, hn::Sub(hn::LoadU(d, p + v * kLanes), max[v]));
        sum[v] = hn::Add(sum[v], weight);
        hn::StoreU(weight, d, p + v * kLanes);
      }
    }
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) {
      E* at = buffers.sum + lane + v * kLanes;
      hn::StoreU(hn::MulAdd(hn::LoadU(d, at), hn::LoadU(d, buffers.rescale + v * kLanes), sum[v]), d, at);
    }
  }

  /// o = o · rescale + Vᵀ p, the first term where kStarted.
  template <int NV, bool kStarted>
  HWY_INLINE void sum_values(int64_t lane, const StripKeys& keys) {
    const D d;
    using V = hn::Vec<D>;
    constexpr int64_t kWidth = NV * kLanes;
    V rescale[NV];
    for (int64_t c = 0; c < dim; c += kRows) {
      V sum[kRows][NV];
      product<true>(d, buffers.v + c * kBlockKeys + keys.begin * kRows, 0, buffers.p + keys.begin * kWidth,
                    kWidth, keys.end - keys.begin, sum, fetch());
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) rescale[v] = hn::LoadU(d, buffers.rescale + v * kLanes);
      E* HWY_RESTRICT to = buffers.o + lane * wide + c * kWidth;
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) {
          E* at = to + r * kWidth + v * kLanes;
          if constexpr (kStarted) sum[r][v] = hn::MulAdd(hn::LoadU(d, at), rescale[v], sum[r][v]);
          hn::StoreU(sum[r][v], d, at);
        }
      }
    }
  }

  HWY_NOINLINE void finish(int64_t lane, int vectors) {
    const D d;
    const int64_t width = vectors * kLanes, filled = std::min(width, lanes - lane);
    const auto one = hn::Set(d, E(1)), zero = hn::Zero(d);
    for (int64_t i = 0; i < width; i += kLanes) {
      const auto sum = hn::LoadU(d, buffers.sum + lane + i);
      const auto seen = hn::Gt(sum, zero);
      hn::StoreU(hn::IfThenElseZero(seen, hn::Div(one, hn::IfThenElse(seen, sum, one))), d,
                 buffers.begin + i);
      const auto log = hn::Log(d, hn::IfThenElse(seen, sum, one));
      const auto max = hn::LoadU(d, buffers.max + lane + i);
      const auto all = hn::MulAdd(finite(d, max), hn::Set(d, static_cast<E>(M_LN2)), log);
      hn::StoreU(hn::IfThenElse(seen, all, hn::Set(d, kEmpty)), d, buffers.end + i);
    }
    if (!buffers.started[lane / kLanes]) zero_row(width * wide, buffers.o + lane * wide);
    E* rows[kStripLanes];
    for (int64_t i = 0; i < width; ++i) rows[i] = buffers.rows + i * wide;
    if constexpr (std::is_same_v<T, E>) {
      if (rows_in_place()) {
        Base::for_rows(lane, filled, [&](int64_t i, int64_t row) { rows[i] = o + row * dim; });
      }
    }
    rows_from_lanes(buffers.o + lane * wide, width, round_up(dim, kBlock<D>), buffers.begin, rows);
    Base::for_rows(lane, filled, [&](int64_t i, int64_t row) {
      lse[row] = buffers.end[i];
      if (!rows_in_place()) store_row(rows[i], dim, o + row * dim);
    });
  }
};

template <typename T>
void run_tiles(const AttentionForward<T>& args, std::span<const LaneTile> tiles) {
  for (size_t i = 0; i < tiles.size(); ++i) {
    ForwardTile<T>(args, tiles[i], i + 1 < tiles.size() ? &tiles[i + 1] : nullptr).run();
  }
}

void forward_float(const AttentionForward<float>& args, std::span<const LaneTile> tiles) {
  run_tiles(args, tiles);
}
void forward_double(const AttentionForward<double>& args, std::span<const LaneTile> tiles) {
  run_tiles(args, tiles);
}
void forward_bfloat16(const AttentionForward<BFloat16>& args, std::span<const LaneTile> tiles) {
  run_tiles(args, tiles);
}

}  // namespace
}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace distca {

HWY_EXPORT(forward_float);
HWY_EXPORT(forward_double);
HWY_EXPORT(forward_bfloat16);

int64_t forward_lanes(const AttentionShape& shape, int64_t element_bytes) {
  const int64_t lanes = second_level_cache_bytes() / 2 / (2 * shape.head_dim * element_bytes);
  return std::clamp<int64_t>(lanes / 48 * 48, 48, 1056);
}

template <>
void forward_tiles(const AttentionForward<float>& args, std::span<const LaneTile> tiles) {
  HWY_DYNAMIC_DISPATCH(forward_float)(args, tiles);
}
template <>
void forward_tiles(const AttentionForward<double>& args, std::span<const LaneTile> tiles) {
  HWY_DYNAMIC_DISPATCH(forward_double)(args, tiles);
}
template <>
void forward_tiles(const AttentionForward<BFloat16>& args, std::span<const LaneTile> tiles) {
  HWY_DYNAMIC_DISPATCH(forward_bfloat16)(args, tiles);
}

}  // namespace distca
#endif
