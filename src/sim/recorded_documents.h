// The documents of the recorded runs, as those runs drew and packed them: which documents, in which order and
// cut where decides their iteration times more than any constant does.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/distribution.h"

namespace distca {

/// All documents of a run in the order in which it took them. Raw documents under 64K tokens are kept with
/// probability 1/2, longer ones taken four times. "wlbllm" lengths are scaled by chunk ÷ 64K and shuffled;
/// three tenths of "prolong"'s long documents become exactly one chunk, and all its long documents come
/// first, shuffled among themselves, then the short ones.
std::vector<int64_t> recorded_documents(Distribution distribution, int64_t tokens_per_chunk, uint64_t seed);

/// Packs documents one after the other into chunks. One that a chunk's end cuts goes on in the next chunk as
/// another document, without its prefix. Begins anew when the documents run out.
class ChunkPacker {
 public:
  ChunkPacker(const std::vector<int64_t>& documents, int64_t tokens_per_chunk)
      : documents_(documents), tokens_per_chunk_(tokens_per_chunk) {}

  /// Lengths of the documents in the next `chunks` chunks, in order.
  std::vector<int64_t> next(int64_t chunks);

 private:
  const std::vector<int64_t>& documents_;
  int64_t tokens_per_chunk_;
  size_t at_ = 0;
  int64_t rest_ = 0;  // of the document that the last chunk cut
};

}  // namespace distca
