// A strip is the query lanes that one register tile is wide. Which keys its lanes see, block by block.
#if defined(DISTCA_KERNEL_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DISTCA_KERNEL_STRIP_INL_H_
#undef DISTCA_KERNEL_STRIP_INL_H_
#else
#define DISTCA_KERNEL_STRIP_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernel/attention.h"
#include "kernel/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Few lanes read key rows where they lie. More are worth a copy: rows of many heads are a multiple of 4 KiB
/// apart, and a register tile's would all meet in one set of the first-level cache.
inline constexpr int64_t kLanesInPlace = 64;

/// Vectors of the next strip when `left` are left: three, but 2 + 2 rather than 3 + 1.
inline int strip_vectors(int64_t left) {
  return left == 4 ? 2 : static_cast<int>(std::min<int64_t>(left, 3));
}

/// What lanes [first, last) of a task see of keys [block, block + block_keys), relative to `block`.
/// Both ends of the keys that a lane sees grow with the lane.
struct StripKeys {
  int64_t begin = 0, end = 0;          // that some lane sees; begin is rounded down to whole register tiles
  int64_t all_begin = 0, all_end = 0;  // that all lanes see
};

inline StripKeys strip_keys(const KernelTask& task, int64_t window_left, int64_t group, int64_t first,
                            int64_t last, int64_t block, int64_t block_keys, int64_t tile_rows) {
  const KeyRange low = visible_keys(task, first / group, window_left);
  const KeyRange high = visible_keys(task, (last - 1) / group, window_left);
  StripKeys keys;
  keys.begin = std::clamp<int64_t>(low.begin - block, 0, block_keys) / tile_rows * tile_rows;
  keys.end = std::clamp<int64_t>(high.end - block, 0, block_keys);
  keys.all_begin = high.begin - block;
  keys.all_end = low.end - block;
  return keys;
}

/// The ends of what each of `lanes` lanes sees, relative to `block`, as numbers to compare key indices with.
/// Lanes beyond `last` see what the last one sees.
template <typename E>
void lane_limits(const KernelTask& task, int64_t window_left, int64_t group, int64_t first, int64_t last,
                 int64_t lanes, int64_t block, int64_t block_keys, E* begin, E* end) {
  for (int64_t lane = 0, query = first / group; lane < lanes; ++query) {
    const KeyRange keys = visible_keys(task, query, window_left);
    const int64_t after = (query + 1) * group;  // the lanes of the query
    const int64_t next = after < last ? std::min(lanes, after - first) : lanes;
    const E begin_here = static_cast<E>(std::clamp<int64_t>(keys.begin - block, 0, block_keys));
    const E end_here = static_cast<E>(std::clamp<int64_t>(keys.end - block, 0, block_keys));
    for (; lane < next; ++lane) begin[lane] = begin_here, end[lane] = end_here;
  }
}

/// acc[r][v] where lane v sees key `key` + r, else `hidden`.
template <int R, int NV, class D, class V, typename E = hn::TFromD<D>>
HWY_INLINE void hide_keys(D d, int64_t key, const E* begin, const E* end, V hidden, V (&acc)[R][NV]) {
  constexpr int kLanes = hn::MaxLanes(d);
  HWY_UNROLL(16)
  for (int v = 0; v < NV; ++v) {
    const V first = hn::LoadU(d, begin + v * kLanes), last = hn::LoadU(d, end + v * kLanes);
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      const V index = hn::Set(d, static_cast<E>(key + r));
      acc[r][v] = hn::IfThenElse(hn::And(hn::Ge(index, first), hn::Lt(index, last)), acc[r][v], hidden);
    }
  }
}

/// Calls Body::run<NV>(…) with the register width of a strip.
template <class Body, typename... Args>
HWY_INLINE void for_width(int vectors, Body& body, Args... args) {
  if (vectors == 3) {
    body.template run<3>(args...);
  } else if (vectors == 2) {
    body.template run<2>(args...);
  } else {
    body.template run<1>(args...);
  }
}

}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
