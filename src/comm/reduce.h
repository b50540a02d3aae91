// Sums and maxima over ranks, made in rank order: ((x0 + x1) + x2) + … element by element, in the data's own
// type. Every fabric reduces through this one function, so that all kinds give the same bits.
#pragma once

#include <span>

#include "comm/fabric.h"

namespace distca {

int64_t bytes_of(DType dtype);

/// "float32", "float64", "int64".
std::string name_of(DType dtype);

/// out[i] = sources[0][i] op sources[1][i] op … for `count` elements. `out` may be one of the sources. A NaN
/// anywhere makes the result NaN, for maxima too.
void reduce_in_rank_order(std::span<const void* const> sources, void* out, int64_t count, DType dtype,
                          ReduceOp op);

/// Where slice `index` of `count` elements starts when they are cut into `slices` slices that differ by one
/// at most; slice `slices` starts at `count`.
int64_t slice_begin(int64_t count, int64_t slices, int64_t index);

}  // namespace distca
