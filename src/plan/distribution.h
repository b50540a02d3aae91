// Document lengths drawn as the field's experiments draw them. Documents under 64K tokens are kept with
// probability 1/2 and longer ones repeated four times; "wlbllm" lengths are scaled by chunk ÷ 64K; of
// "prolong"'s long documents 30% become exactly one chunk. Documents are packed one after the other, and one
// that a chunk's end cuts goes on as another document, without its prefix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "plan/random.h"

namespace distca {

enum class Distribution { kWlbllm, kProlong };

/// Throws InputError for a name that is neither "wlbllm" nor "prolong".
Distribution distribution_named(const std::string& name);

/// Documents behind a distribution's table of lengths, and the length that a share `probability` of them is
/// shorter than, before anything is kept, repeated or scaled.
int64_t raw_documents(Distribution distribution);
double raw_length_at(Distribution distribution, double probability);

/// Draws document lengths one by one, independently.
class LengthSampler {
 public:
  LengthSampler(Distribution distribution, int64_t tokens_per_chunk, uint64_t seed)
      : distribution_(distribution), tokens_per_chunk_(tokens_per_chunk), random_(seed) {}

  int64_t next();

 private:
  Distribution distribution_;
  int64_t tokens_per_chunk_;
  Random random_;
  int64_t long_documents_ = 0;
};

/// `chunks` full chunks.
Documents sample_documents(Distribution distribution, int32_t chunks, int64_t tokens_per_chunk,
                           uint64_t seed);

}  // namespace distca
