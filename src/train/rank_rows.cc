#include "train/rank_rows.h"

#include <algorithm>

#include "base/check.h"

namespace distca {

Layout layout_of(const NanoBatch& nano_batch, int64_t rows, int32_t ranks) {
  return pack_in_order(nano_batch.lengths(), ranks, (rows + ranks - 1) / ranks);
}

RankRows read_rows(const NanoBatch& nano_batch, const Layout& layout, int32_t rank, const TokenSource& source,
                   int64_t vocabulary) {
  RankRows out;
  out.tokens.assign(layout.rows, 0);
  out.positions.assign(layout.rows, 0);
  out.targets.assign(layout.rows, kNoTarget);
  std::vector<int64_t> tokens;
  for (const Shard& shard : layout.shards) {
    if (shard.home != rank) continue;
    const Piece& piece = nano_batch.documents[shard.doc];
    const int64_t first = piece.tokens.begin + shard.tokens.begin, size = shard.tokens.size();
    const Span with_next{first, std::min(first + size + 1, piece.tokens.end)};
    tokens.resize(with_next.size());
    source.read(piece.doc, with_next, tokens.data());
    for (int64_t i = 0; i < with_next.size(); ++i) {
      DISTCA_CHECK_INPUT(tokens[i] >= 0 && tokens[i] < vocabulary,
                         "{}: token {} of document {} is {}; the model's vocabulary has {}", source.name,
                         first + i, piece.doc, tokens[i], vocabulary);
    }
    for (int64_t i = 0; i < size; ++i) {
      out.tokens[shard.row + i] = tokens[i];
      out.positions[shard.row + i] = shard.tokens.begin + i;
      if (i + 1 < with_next.size()) out.targets[shard.row + i] = tokens[i + 1];
    }
    out.target_count += with_next.size() - 1;
  }
  return out;
}

}  // namespace distca
