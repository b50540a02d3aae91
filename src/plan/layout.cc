#include "plan/layout.h"

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

/// Pairs of a document of this many tokens still count in 64 bits with room for sums.
constexpr int64_t kMaxDocumentTokens = int64_t{1} << 30;

void check_length(int64_t length, const std::string& what) {
  DISTCA_CHECK_INPUT(length >= 0, "{} is {}: a document's length can't be negative", what, length);
  DISTCA_CHECK_INPUT(length <= kMaxDocumentTokens, "{} is {}: a document holds at most {} tokens", what,
                     length, kMaxDocumentTokens);
}

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

int64_t scaled(int64_t tokens, double scale) {
  // 1/49 · 49 is a little below 1 in floating point.
  return scale == 1 ? tokens : static_cast<int64_t>(std::floor(static_cast<double>(tokens) * scale + 1e-9));
}

int64_t integer(const Json& value, const std::string& place) {
  DISTCA_CHECK_INPUT(value.is_number_integer(), "{}: {} is not a whole number", place, value.dump());
  return value.get<int64_t>();
}

std::vector<int64_t> parse_chunk(const Json& list, const std::string& place, double scale) {
  DISTCA_CHECK_INPUT(list.is_array(), "{}: {} is not a list of document lengths", place, list.dump());
  std::vector<int64_t> lengths;
  lengths.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string item = format("{}[{}]", place, i);
    const int64_t length = integer(list[i], item);
    check_length(length, item);
    lengths.push_back(scaled(length, scale));
  }
  return lengths;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

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
  for (size_t i = 0; i < doc_lengths.size(); ++i) check_length(doc_lengths[i], format("document {}", i));
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

Documents parse_documents(std::string_view text, const std::string& origin, double scale) {
  DISTCA_CHECK_INPUT(scale > 0 && scale <= 1, "scale {} is not above 0 and at most 1", scale);
  const Json file = parse_json(text, origin);
  DISTCA_CHECK_INPUT(file.is_object() && file.contains("doc_lengths"), "{}: has no \"doc_lengths\"", origin);
  const Json& lists = file["doc_lengths"];
  DISTCA_CHECK_INPUT(lists.is_array() && !lists.empty(), "{}: doc_lengths is not a list of chunks", origin);
  Documents documents;
  int64_t longest = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    documents.chunks.push_back(parse_chunk(lists[i], format("{}: doc_lengths[{}]", origin, i), scale));
    longest = std::max(longest, sum(documents.chunks.back()));
  }
  documents.tokens_per_chunk = longest;
  if (file.contains("tokens_per_chunk")) {
    const int64_t tokens = integer(file["tokens_per_chunk"], origin + ": tokens_per_chunk");
    DISTCA_CHECK_INPUT(tokens >= 1, "{}: tokens_per_chunk is {}; it must be at least 1", origin, tokens);
    documents.tokens_per_chunk = scaled(tokens, scale);
  }
  return documents;
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
      check_length(length, format("document {} of chunk {}", doc, chunk));
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

Documents read_documents(const std::string& path, double scale) {
  return parse_documents(read_text(path), path, scale);
}

}  // namespace distca
