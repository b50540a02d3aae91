#include "comm/report.h"

#include <cstdio>

#include "base/check.h"
#include "comm/reduce.h"

namespace distca {

std::string rank_list(const std::vector<int32_t>& ranks) {
  if (ranks.size() == 1) return format("rank {}", ranks[0]);
  std::string out = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += std::to_string(ranks[i]);
  }
  return out;
}

std::string seconds_text(double seconds) {
  char out[32];
  std::snprintf(out, sizeof out, seconds < 1 ? "%.2g s" : "%.1f s", seconds);
  return out;
}

std::string with_rank(int32_t rank, const std::string& message) {
  const std::string name = format("rank {}", rank);
  if (message.starts_with(name + " ") || message.starts_with(name + ":")) return message;
  return name + ": " + message;
}

std::string timeout_message(int32_t rank, double seconds, const std::vector<int32_t>& peers,
                            const std::string& name) {
  return format("rank {} waited {} for {} in {}", rank, seconds_text(seconds), rank_list(peers), name);
}

std::string stopped_message(int32_t rank, const std::vector<int32_t>& peers, const std::string& name,
                            const std::string& failure) {
  if (peers.empty()) return format("rank {} stopped before {}: {}", rank, name, failure);
  return format("rank {} stopped waiting for {} in {}: {}", rank, rank_list(peers), name, failure);
}

std::string mismatch_message(int32_t rank, const std::string& what, int32_t other,
                             const std::string& other_what) {
  return format(
      "rank {} calls {} where rank {} calls {}; all ranks must call the same operations in the same order",
      rank, what, other, other_what);
}

std::string exchange_text(const std::string& name, size_t parts) {
  return format("all_to_all '{}' of {} parts", name, parts);
}

std::string all_reduce_text(const std::string& name, int64_t count, DType dtype, ReduceOp op) {
  return format("all_reduce '{}' of {} {} ({})", name, count, name_of(dtype),
                op == ReduceOp::kSum ? "sum" : "max");
}

std::string reduce_scatter_text(const std::string& name, int64_t count, DType dtype) {
  return format("reduce_scatter '{}' of {} {} a rank", name, count, name_of(dtype));
}

std::string all_gather_text(const std::string& name, int64_t bytes) {
  return format("all_gather '{}' of {} bytes a rank", name, bytes);
}

std::string broadcast_text(const std::string& name, int64_t bytes, int32_t root) {
  return format("broadcast '{}' of {} bytes from rank {}", name, bytes, root);
}

std::string message_text(const std::string& name, int64_t bytes) {
  return format("message '{}' of {} bytes", name, bytes);
}

std::string barrier_text(const std::string& name) {
  return format("barrier '{}'", name);
}

std::string split_text(const std::string& name) {
  return format("split '{}'", name);
}

std::string size_message(size_t part, const std::string& name, int32_t sender, int64_t sent, int32_t receiver,
                         int64_t expected) {
  return format("part {} of {}: rank {} sends {} bytes to rank {}, which expects {}", part, name, sender,
                sent, receiver, expected);
}

void check_peer(int32_t peer, int32_t world_size, const std::string& name) {
  DISTCA_CHECK(peer >= 0 && peer < world_size, "{} names rank {} of {}", name, peer, world_size);
}

void check_parts(const std::vector<ExchangePart>& parts, int32_t world_size, const std::string& name) {
  std::vector<int64_t> listed(world_size);
  int64_t list = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const auto* peers : {&parts[part].sends, &parts[part].receives}) {
      ++list;
      for (const PeerBytes& at : *peers) {
        DISTCA_CHECK(at.peer >= 0 && at.peer < world_size, "part {} of {} lists rank {} of {}", part, name,
                     at.peer, world_size);
        DISTCA_CHECK(at.offset >= 0 && at.bytes >= 0, "part {} of {} lists {} bytes at offset {} for rank {}",
                     part, name, at.bytes, at.offset, at.peer);
        DISTCA_CHECK(listed[at.peer] != list, "part {} of {} lists rank {} twice", part, name, at.peer);
        listed[at.peer] = list;
      }
    }
  }
}

std::vector<int64_t> bytes_by_peer(const std::vector<ExchangePart>& parts, int32_t world_size, bool sends) {
  std::vector<int64_t> bytes(parts.size() * world_size);
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const PeerBytes& at : sends ? parts[part].sends : parts[part].receives) {
      bytes[part * world_size + at.peer] = at.bytes;
    }
  }
  return bytes;
}

}  // namespace distca
