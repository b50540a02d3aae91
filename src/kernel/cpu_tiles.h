// What the parts of the CPU kernel that are compiled for each instruction set offer to the rest.
#pragma once

#include <span>

#include "kernel/attention.h"
#include "kernel/schedule.h"

namespace distca {

/// Of this core, but at least 1 MiB and at most 2: what panels are sized by.
int64_t second_level_cache_bytes();

/// Query lanes that the forward kernel lets share a packed key/value block: as many as keep their panels in
/// the second-level cache. A multiple of 48.
int64_t forward_lanes(const AttentionShape& shape, int64_t element_bytes);

/// Query lanes that the backward kernel lets share one. A multiple of the group.
int64_t backward_lanes(const AttentionShape& shape, int64_t element_bytes);

/// Computes O and LSE of the tiles, on the calling thread.
template <typename T>
void forward_tiles(const AttentionForward<T>& args, std::span<const LaneTile> tiles);

/// Where a segment of the backward schedule sums gradients that aren't the result's own.
template <typename A>
struct PrivateGradients {
  A *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// Computes the gradients of a segment for one key/value head, on the calling thread: every row of its runs
/// is written.
template <typename T>
void backward_segment(const AttentionBackward<T>& args, const BackwardSchedule& schedule, int64_t segment,
                      int64_t kv_head, const PrivateGradients<Accumulator<T>>& privates);

}  // namespace distca
