// What a data set is made of, and what its mixed lengths cost a run that doesn't disaggregate attention.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/global_batch.h"

namespace distca {

/// Documents of `least` to `most` tokens. Bins are powers of two: 0, 1, 2–3, 4–7, …
struct LengthBin {
  int64_t least = 0, most = 0;
  int64_t documents = 0, tokens = 0;
  double pairs = 0;  // (query, key) pairs of whole documents under the causal mask
};

struct LengthReport {
  int64_t documents = 0, tokens = 0, longest = 0, longest_document = -1;
  std::vector<LengthBin>
      bins;  // from the shortest length there is to the longest, empty ones between included
};

LengthReport report_lengths(const TokenSource& source);

/// Attention load of the busiest rank over the mean rank's when documents are packed end to end into equal
/// chunks and each rank computes the queries of its own rows (in causal pairs, prefixes on other ranks
/// included).
struct SkewReport {
  int64_t steps = 0, nano_batches = 0;  // looked at
  int64_t split = 0;                    // documents longer than a nano-batch, cut for this report
  double mean = 0, worst = 0;           // max ÷ mean, over nano-batches that hold tokens
  double padding = 0;                   // share of rows
};

/// Over the first epoch's batches as a run would draw them, at most `most_steps` of them. Throws InputError
/// for inputs that can't be right.
SkewReport report_skew(const TokenSource& source, BatchInputs inputs, int32_t ranks,
                       int64_t most_steps = 200);

}  // namespace distca
