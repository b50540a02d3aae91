// For debugging: ranks tell each other what they are about to call, since NCCL can't see calls that don't
// match.
#pragma once

#include <string>
#include <vector>

#include "comm/nccl_engine.h"

namespace distca {

/// Returns when all members of the operation's communicator call `what`, and send in an exchange of `parts`
/// what this rank expects. Throws PeerError that tells both otherwise.
void compare_calls(NcclEngine& engine, NcclOperation& operation, const std::string& what,
                   const std::vector<ExchangePart>& parts);

}  // namespace distca
