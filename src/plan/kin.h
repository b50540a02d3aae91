// Recipients that hold keys of a donor's documents are cheaper than strangers: rows ship without keys.
#pragma once

#include <vector>

#include "plan/draft.h"
#include "plan/transport.h"

namespace distca {

/// Gives of a rank's surplus what is cheaper to give to such recipients than in one flow to a stranger: takes
/// it from `rooms`, appends (server, load) to `flows`, and returns what is left. With a bytes a row, b a key
/// and f keys held, F pairs cost a · F / f, or 2 · sqrt(a · b · F) - b · f where further keys pay.
int64_t give_to_kin(const Draft& draft, int32_t rank, int64_t surplus, Rooms& rooms,
                    std::vector<Room>& flows);

}  // namespace distca
