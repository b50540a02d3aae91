// Keys that a server has anyway. A rank that is home to a part of a document holds that part's keys, and
// fetches those before it for its own queries: more queries of the document at this rank ship rows alone.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"

namespace distca {

class HeldKeys {
 public:
  HeldKeys() = default;
  explicit HeldKeys(const Layout& layout);

  /// Whether the document of a shard (an index into the layout's) has other shards.
  bool spans(int32_t shard) const { return !last_.empty() && last_[at(shard)] > first_[at(shard)]; }

  /// Keys before this position of the shard's document are at `server`, which computes its own queries; 0:
  /// none.
  int64_t end_at(int32_t shard, int32_t server) const;

  /// Ranks that are home to parts of documents of which `rank` is home to a part too, of each document eight
  /// before it and eight after; ascending.
  const std::vector<int32_t>& kin_of(int32_t rank) const;

  const Shard& shard(int32_t index) const { return shards_[at(index)]; }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }

  std::vector<Shard> shards_;
  std::vector<int32_t> first_, last_;  // of the shard's document; empty where no document spans
  std::vector<std::vector<int32_t>> kin_;
};

}  // namespace distca
