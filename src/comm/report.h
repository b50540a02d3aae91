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

/// What a call is, with its name and sizes: equal on all ranks that take part.
std::string exchange_text(const std::string& name, size_t parts);
std::string all_reduce_text(const std::string& name, int64_t count, DType dtype, ReduceOp op);
std::string reduce_scatter_text(const std::string& name, int64_t count, DType dtype);
std::string all_gather_text(const std::string& name, int64_t bytes);
std::string broadcast_text(const std::string& name, int64_t bytes, int32_t root);
std::string message_text(const std::string& name, int64_t bytes);
std::string barrier_text(const std::string& name);
std::string split_text(const std::string& name);

/// What is wrong when a rank sends `sent` bytes to another that expects `expected`.
std::string size_message(size_t part, const std::string& name, int32_t sender, int64_t sent, int32_t receiver,
                         int64_t expected);

/// Throws Error unless `peer` is a rank of a fabric of `world_size`.
void check_peer(int32_t peer, int32_t world_size, const std::string& name);

/// Throws Error unless every peer of `parts` is a rank, is listed once per direction and has no negative
/// offset or size.
void check_parts(const std::vector<ExchangePart>& parts, int32_t world_size, const std::string& name);

/// Bytes by part and peer: [part · world_size + peer].
std::vector<int64_t> bytes_by_peer(const std::vector<ExchangePart>& parts, int32_t world_size, bool sends);

}  // namespace distca
