// The words in which every fabric reports what went wrong.
#pragma once

#include <string>
#include <vector>

#include "comm/fabric.h"

namespace distca {

/// "rank 2", "ranks 2, 5 and 7".
std::string rank_list(const std::vector<int32_t>& ranks);

/// "2.0 s".
std::string seconds_text(double seconds);

/// "rank 2: message", or the message alone where it already begins with that rank.
std::string with_rank(int32_t rank, const std::string& message);

/// "rank 0 waited 2.0 s for rank 2 in dispatch layer 3".
std::string timeout_message(int32_t rank, double seconds, const std::vector<int32_t>& peers,
                            const std::string& name);

/// What a rank says whose wait was ended by the failure of another: both are named.
std::string stopped_message(int32_t rank, const std::vector<int32_t>& peers, const std::string& name,
                            const std::string& failure);

/// What a rank says when it finds that another calls something else.
std::string mismatch_message(int32_t rank, const std::string& what, int32_t other,
                             const std::string& other_what);

/// Throws Error unless every peer of `parts` is a rank, is listed once per direction and has no negative
/// offset or size.
void check_parts(const std::vector<ExchangePart>& parts, int32_t world_size, const std::string& name);

/// Bytes by part and peer: [part · world_size + peer].
std::vector<int64_t> bytes_by_peer(const std::vector<ExchangePart>& parts, int32_t world_size, bool sends);

}  // namespace distca
