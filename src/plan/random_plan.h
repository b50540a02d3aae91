// Random layouts and random valid plans, for tests and benchmarks of whatever reads plans: ragged documents,
// tasks cut along queries and keys anywhere the grid allows, servers drawn at random.
#pragma once

#include <cstdint>
#include "plan/plan.h"
#include "plan/random.h"

namespace distca {

/// 1 to `max_ranks` ranks, documents of 0 to `max_length` tokens; some layouts are padded.
Layout random_layout(Random& random, int32_t max_ranks, int64_t max_length);

/// The same without padding: every row of every rank holds a token.
Layout random_full_layout(Random& random, int32_t max_ranks, int64_t max_length);

/// A valid plan for `layout` with up to `max_dedicated` dedicated servers.
Plan random_plan(Random& random, const Layout& layout, int32_t max_dedicated = 2);

}  // namespace distca
