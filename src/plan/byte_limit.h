// Bytes that a server may send, and receive, as a limit that plans keep rather than break.
#pragma once

#include "plan/draft.h"

namespace distca {

/// Shrinks flows of servers above the options' byte limit, the busiest first, until none is above or nothing
/// is left to shrink. What a recipient can't receive goes to others that have load and bytes to spare; what a
/// donor can't send stays at home.
void keep_byte_limit(Draft& draft);

}  // namespace distca
