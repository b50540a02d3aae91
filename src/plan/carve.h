// Cutting attention out of a donor's documents. What a rank holds of a document is a region: rows of queries
// against the keys from `left` on, under the causal mask. A piece for another server is taken from a region's
// bottom left corner: its lowest rows against its first keys. What stays is two regions again, the rows above
// and the keys to the right, so that cutting can go on.
//
// A piece of h rows and w keys costs h · (Q + O) + w · (K + V) bytes for about h · w pairs, and is cheapest
// where the two are equal. Near the diagonal the mask clips it, and the optimum has a closed form too (see
// carve.cc).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/held_keys.h"
#include "plan/plan.h"
#include "plan/row_bytes.h"

namespace distca {

/// Queries [top, bottom) of one shard against keys [left, query], left <= top.
struct Region {
  int32_t shard = 0;  // index into the layout's
  int64_t top = 0, bottom = 0, left = 0;

  int64_t rows() const { return bottom - top; }
  int64_t keys() const { return bottom - left; }
};

/// Queries [top, bottom) of a shard against keys [left, right) under the causal mask, for server `to`.
struct Cutout {
  int32_t shard = 0, to = 0;
  int64_t top = 0, bottom = 0, left = 0, right = 0;
  bool strip = false;  // its rows are among those of the piece before, for the same server

  int64_t rows() const { return bottom - top; }
  int64_t keys() const { return right - left; }
  /// Some of the keys that its rows see are not in it.
  bool partial() const { return left > 0 || right < bottom; }
};

/// Padded pairs of a donor's load that go to server `to`, in at most `max_keys` key rows.
struct Flow {
  int32_t to = 0;
  int64_t pairs = 0;
  int64_t max_keys = INT64_MAX;
};

/// Keys before `end` that the home of a shard need not fetch: others compute all of the shard's queries
/// against them.
struct Saving {
  int32_t shard = 0;
  int64_t end = 0;
};

/// A donor's regions cut: pieces for others, the regions that were touched and what is left of them.
struct Carving {
  std::vector<Cutout> pieces;
  std::vector<Region> rest;  // of the first `touched` regions of the donor
  size_t touched = 0;
  std::vector<Saving> savings;
  int64_t bytes = 0;  // what shipping the pieces costs, less what is saved

  void clear();
};

class Carver {
 public:
  Carver() = default;

  /// A piece misses its pairs by at most `slack` where the grid allows: else a strip one tile wide is added.
  Carver(const Layout& layout, const RowBytes& bytes, int64_t slack);

  const HeldKeys& held_keys() const { return held_; }

  /// All of what a rank is home to, largest regions first.
  std::span<const Region> regions_of(int32_t rank) const;

  /// Cuts the flows, in the order given, out of the regions of `rank`. With `everything` the last flow takes
  /// all that is left. Pieces fall short where regions or key limits end.
  void carve(int32_t rank, std::span<const Flow> flows, bool everything, Carving& carving) const;

 private:
  RowBytes bytes_;
  int64_t slack_ = 0;
  HeldKeys held_;
  std::vector<size_t> first_;  // regions of rank r: first_[r] up to first_[r + 1]
  std::vector<Region> regions_;
};

/// Padded pairs of a piece, cut into tasks as add_tasks does.
int64_t padded_pairs(const Cutout& piece);
int64_t pairs(const Cutout& piece);

/// The one or two tasks that compute a piece.
void add_tasks(const Cutout& piece, int32_t doc, std::vector<Task>& tasks);

}  // namespace distca
