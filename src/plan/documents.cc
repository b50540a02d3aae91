#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/json.h"
#include "plan/layout.h"

namespace distca {
namespace {

constexpr int64_t kMaxChunkTokens = int64_t{1} << 40;

int64_t scaled(int64_t tokens, double scale) {
  // 1/49 · 49 is a little below 1 in floating point.
  return scale == 1 ? tokens : static_cast<int64_t>(std::floor(static_cast<double>(tokens) * scale + 1e-9));
}

int64_t integer(const Json& value, const std::string& place) {
  const bool beyond = value.is_number() && value.get<double>() >= 0x1p63;
  DISTCA_CHECK_INPUT(!beyond, "{} is {}: too large a number", place, value.dump());
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
    check_document_length(length, item);
    lengths.push_back(scaled(length, scale));
  }
  return lengths;
}

}  // namespace

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
    const std::vector<int64_t>& chunk = documents.chunks.back();
    longest = std::max(longest, std::accumulate(chunk.begin(), chunk.end(), int64_t{0}));
  }
  documents.tokens_per_chunk = longest;
  if (file.contains("tokens_per_chunk")) {
    const int64_t tokens = integer(file["tokens_per_chunk"], origin + ": tokens_per_chunk");
    DISTCA_CHECK_INPUT(tokens >= 1 && tokens <= kMaxChunkTokens,
                       "{}: tokens_per_chunk is {}; it must be from 1 to {}", origin, tokens,
                       kMaxChunkTokens);
    documents.tokens_per_chunk = scaled(tokens, scale);
  }
  return documents;
}

Documents read_documents(const std::string& path, double scale) {
  return parse_documents(read_text(path), path, scale);
}

}  // namespace distca
