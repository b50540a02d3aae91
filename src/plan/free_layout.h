// Layouts for a global batch whose documents may change rank before the step: the gradient is the same. Equal
// tokens on every rank, attention nearly even, long documents cut into contiguous pieces on neighbouring
// ranks, so that little needs moving: a piece [b, e) computed at home needs the keys before b, no queries and
// no outputs.
#pragma once

#include "plan/plan.h"
#include "plan/policy.h"

namespace distca {

struct FreeLayoutOptions {
  double piece_share = 1;    // attention a rank may have, over its share
  double least_piece = 0.1;  // of a rank's attention: smaller pieces aren't cut off a document
};

/// Every rank's tokens are within 128 of the mean where documents allow it; rows is the largest rank's.
Layout free_layout(const std::vector<int64_t>& doc_lengths, int32_t ranks, const PlanOptions& options,
                   const FreeLayoutOptions& free = {});

/// The one of several such layouts that takes the fewest bytes to plan within the tolerance.
Layout best_free_layout(const std::vector<int64_t>& doc_lengths, int32_t ranks, const PlanOptions& options);

/// Whether every rank's tokens are within 128 of the mean.
bool tokens_are_equal(const Layout& layout);

}  // namespace distca
