// Search over drafts of a plan: a few donors and recipients at a time are assigned anew, and what costs less
// is kept.
#pragma once

#include <cstdint>

#include "plan/draft.h"

namespace distca {

/// Whether the busiest servers are to be relieved, or all bytes count alike.
enum class SearchFor { kBusiest, kBytes };

/// What a draft costs, in bytes: those of all pieces, and with kBusiest, for every server that sends or
/// receives more than the donor that gives most must send at the cheapest, the square of the excess over that
/// bound.
struct SearchCost {
  int64_t before = 0, after = 0;
};

/// Tries `moves` changes, the same on every machine. The draft never costs more afterwards.
SearchCost search(Draft& draft, int64_t moves, SearchFor goal);

}  // namespace distca
