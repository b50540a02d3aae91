// The last tiles. What the scheduler's flows leave above a server's capacity is taken off task by task: part
// of a task moves from the server that is furthest above to the one with most room, down to single tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/draft.h"

namespace distca {

/// Changes `tasks`, which are the draft's, and the draft's loads with them. Steps are bounded by the
/// number of servers; a server that no step can relieve keeps what it has.
void level(Draft& draft, std::vector<Task>& tasks);

}  // namespace distca
