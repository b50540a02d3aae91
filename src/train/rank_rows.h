// What one rank holds of a nano-batch: tokens, positions within their documents and targets, row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "train/global_batch.h"

namespace distca {

/// The nano-batch end to end over `ranks` equal chunks.
Layout layout_of(const NanoBatch& nano_batch, int64_t rows, int32_t ranks);

/// The target of a row that predicts nothing: what PyTorch's losses ignore.
inline constexpr int64_t kNoTarget = -100;

/// What one rank holds of a nano-batch, one entry a row of its chunk. Padding has token 0, position 0 and no
/// target.
struct RankRows {
  std::vector<int64_t> tokens;
  std::vector<int64_t> positions;  // within the row's document
  std::vector<int64_t> targets;    // the document's next token, which may live on another rank; or kNoTarget
  int64_t target_count = 0;
};

/// Reads the rows of `rank`. Throws InputError that names the document of a token outside [0, vocabulary).
RankRows read_rows(const NanoBatch& nano_batch, const Layout& layout, int32_t rank, const TokenSource& source,
                   int64_t vocabulary);

}  // namespace distca
