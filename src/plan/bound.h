// The least that a plan on a fixed layout must ship. Every plan in which no server's load is above its
// capacity, whatever moves where, ships at least as much: a plan that ends below has a server above.
//
// Loads are padded pairs. Those of a document on one rank don't depend on how it is cut, but for rounding:
// the r rows of its last tile count as 128 wherever they are computed. (A document that spans ranks is tiled
// from each shard's first row, and counts here with its causal pairs: its padded ones are never fewer.) Let
// x(i, j) be the load at home on i that j computes. h rows and w keys of a document hold at most (h + g) · w
// of it, where g = 128 - r, so a bytes a row and b a key make x cost
//   root(x) = 2 · sqrt(a · b · x) - a · g, or b · x / g where that is the tangent from 0,
// which is concave. A server gives away its surplus, and keeps what it has room for, net of what it passes
// on. Passing on never pays under a concave cost: where load comes in by some arcs and goes out by others,
// matching the two in order gives direct arcs, each no more than an arc it replaces, and no more of them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/row_bytes.h"

namespace distca {

/// Bytes by the root alone, where no tile has fewer than 128 - `padding` rows. Receivers: the total surplus
/// over `capacities` fills the largest rooms first. Donors: each one's own surplus does so, with all rooms
/// free again. The larger of the two sums.
double root_bound_bytes(const std::vector<int64_t>& loads, const std::vector<int64_t>& capacities,
                        const RowBytes& bytes, int64_t padding = 0);

/// What `surplus` of the load of one rank's `shards` costs at least under the causal mask, wherever it goes:
/// h rows and w keys of a document of D tokens share no more than about h·w - (h + w - D)² / 2 pairs where
/// h + w > D, so that short documents cost more than the root. Rows of a document that spans ranks may meet
/// keys at their destination, and cost a alone.
double mask_bound_bytes(const Layout& layout, const std::vector<Shard>& shards, double surplus,
                        const RowBytes& bytes);

struct LowerBound {
  double root = 0;  // bytes, by the root alone
  double mask = 0;  // the larger of that and, donor by donor, what the mask makes of it
  double best = 0;  // the larger of that and, where no document spans ranks, plan/transport_bound.h's
};

/// `capacities` are padded pairs, one a server. Keys that a document which spans ranks has at a server are
/// taken off: they may be free.
LowerBound lower_bound(const Layout& layout, const std::vector<int64_t>& capacities, const RowBytes& bytes);

}  // namespace distca
