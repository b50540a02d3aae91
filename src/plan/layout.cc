#include "plan/layout.h"

#include <numeric>

#include "base/check.h"

namespace distca {
namespace {

/// Pairs of a document of this many tokens still count in 64 bits with room for sums.
constexpr int64_t kMaxDocumentTokens = int64_t{1} << 30;

/// Adds the shards of document `doc`, whose first token stands at row `at` of all ranks' rows end to end.
void add_shards(Layout& layout, int32_t doc, int64_t at) {
  const int64_t length = layout.doc_lengths[static_cast<size_t>(doc)];
  for (int64_t begin = 0; begin < length;) {
    const int64_t home = (at + begin) / layout.rows, row = (at + begin) % layout.rows;
    const int64_t end = std::min(length, begin + layout.rows - row);
    layout.shards.push_back({doc, {begin, end}, static_cast<int32_t>(home), row});
    begin = end;
  }
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

void check_document_length(int64_t length, const std::string& what) {
  DISTCA_CHECK_INPUT(length >= 0, "{} is {}: a document's length can't be negative", what, length);
  DISTCA_CHECK_INPUT(length <= kMaxDocumentTokens, "{} is {}: a document holds at most {} tokens", what,
                     length, kMaxDocumentTokens);
}

int64_t Layout::tokens() const {
  return sum(doc_lengths);
}

std::vector<int64_t> Layout::tokens_of_ranks() const {
  std::vector<int64_t> tokens(static_cast<size_t>(ranks), 0);
  for (const Shard& shard : shards) tokens[static_cast<size_t>(shard.home)] += shard.tokens.size();
  return tokens;
}

Layout pack_in_order(std::vector<int64_t> doc_lengths, int32_t ranks, int64_t rows) {
  DISTCA_CHECK_INPUT(ranks >= 1, "{} ranks: documents need at least one rank to lie on", ranks);
  DISTCA_CHECK_INPUT(rows >= 0, "{} rows a rank: a chunk can't be negative", rows);
  for (size_t i = 0; i < doc_lengths.size(); ++i)
    check_document_length(doc_lengths[i], format("document {}", i));
  Layout layout{std::move(doc_lengths), ranks, rows, {}};
  const int64_t tokens = layout.tokens();
  if (rows == 0) layout.rows = std::max<int64_t>(1, (tokens + ranks - 1) / ranks);
  DISTCA_CHECK_INPUT((tokens + layout.rows - 1) / layout.rows <= ranks,
                     "{} tokens don't fit in {} ranks of {} rows: use more ranks or more rows", tokens, ranks,
                     layout.rows);
  int64_t at = 0;
  for (size_t doc = 0; doc < layout.doc_lengths.size(); ++doc) {
    add_shards(layout, static_cast<int32_t>(doc), at);
    at += layout.doc_lengths[doc];
  }
  return layout;
}

Layout pack_documents(const Documents& documents) {
  Layout layout;
  layout.ranks = static_cast<int32_t>(documents.chunks.size());
  DISTCA_CHECK_INPUT(layout.ranks >= 1, "a batch without chunks can't be packed");
  layout.rows = std::max<int64_t>(1, documents.tokens_per_chunk);
  const int64_t all_rows = layout.rows * layout.ranks;
  int64_t at = 0;
  for (int32_t chunk = 0; chunk < layout.ranks; ++chunk) {
    at = std::max(at, chunk * layout.rows);
    for (const int64_t length : documents.chunks[static_cast<size_t>(chunk)]) {
      const auto doc = static_cast<int32_t>(layout.doc_lengths.size());
      check_document_length(length, format("document {} of chunk {}", doc, chunk));
      DISTCA_CHECK_INPUT(at + length <= all_rows,
                         "document {} of chunk {} ends at row {}, beyond the {} chunks of {} tokens", doc,
                         chunk, at + length, layout.ranks, layout.rows);
      layout.doc_lengths.push_back(length);
      add_shards(layout, doc, at);
      at += length;
    }
  }
  return layout;
}

}  // namespace distca
