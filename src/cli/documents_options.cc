#include "cli/documents_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <numeric>

#include "base/check.h"
#include "cli/plan_numbers.h"
#include "plan/distribution.h"

namespace distca {
namespace {

constexpr int64_t kMaxChunks = 1'000'000, kMaxChunkTokens = int64_t{1} << 30,
                  kMaxDrawnTokens = int64_t{1} << 36;

int64_t tokens_of(const Documents& documents) {
  int64_t tokens = 0;
  for (const auto& chunk : documents.chunks) tokens = std::accumulate(chunk.begin(), chunk.end(), tokens);
  return tokens;
}

double number(std::string_view text, const std::string& whole) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  DISTCA_CHECK_INPUT(end.ec == std::errc() && end.ptr == text.data() + text.size(),
                     "--scale '{}' is neither a number nor a fraction such as 1/8", whole);
  return value;
}

double parse_scale(const std::string& text) {
  const size_t slash = text.find('/');
  const double value = slash == std::string::npos
                           ? number(text, text)
                           : number(std::string_view(text).substr(0, slash), text) /
                                 number(std::string_view(text).substr(slash + 1), text);
  DISTCA_CHECK_INPUT(value > 0 && value <= 1, "--scale {} is not above 0 and at most 1", text);
  return value;
}

Documents scaled(Documents documents, double scale) {
  for (auto& chunk : documents.chunks) {
    for (int64_t& length : chunk) length = static_cast<int64_t>(static_cast<double>(length) * scale);
  }
  documents.tokens_per_chunk = static_cast<int64_t>(static_cast<double>(documents.tokens_per_chunk) * scale);
  return documents;
}

}  // namespace

void add_documents_options(CLI::App& command, DocumentsOptions& options) {
  auto* docs = command.add_option("--docs", options.docs,
                                  "documents file: {\"doc_lengths\": [[…], …]}, a list a chunk");
  auto* drawn =
      command.add_option("--distribution", options.distribution,
                         "draw documents instead: wlbllm or prolong, the field's two length distributions");
  docs->excludes(drawn);
  command.add_option("--chunks", options.chunks, "chunks to draw")
      ->check(whole_number(1, kMaxChunks))
      ->capture_default_str()
      ->needs(drawn);
  command.add_option("--tokens-per-chunk", options.tokens_per_chunk, "tokens of each chunk drawn")
      ->check(whole_number(1, kMaxChunkTokens))
      ->capture_default_str()
      ->needs(drawn);
  command.add_option("--seed", options.seed, "of the draw")
      ->check(whole_number(0, INT64_MAX))
      ->capture_default_str()
      ->needs(drawn);
  command.add_option("--scale", options.scale, "multiply lengths, rounding down: 1/8 or 0.125")
      ->capture_default_str();
}

Documents documents_of(const DocumentsOptions& options) {
  DISTCA_CHECK_INPUT(options.docs.empty() != options.distribution.empty(),
                     "name the documents with --docs FILE, or --distribution wlbllm or prolong");
  const double scale = parse_scale(options.scale);
  if (!options.docs.empty()) {
    const Documents documents = read_documents(options.docs, scale);
    DISTCA_CHECK_INPUT(tokens_of(documents) > 0, "{}: its documents have no tokens{}", options.docs,
                       scale < 1 ? " at --scale " + options.scale : "");
    DISTCA_CHECK_INPUT(documents.tokens_per_chunk >= kTileRows,
                       "{}: a chunk of {} rows; at least {} are needed", options.docs,
                       documents.tokens_per_chunk, kTileRows);
    return documents;
  }
  DISTCA_CHECK_INPUT(options.chunks >= 1, "--chunks {}: at least 1 is needed", options.chunks);
  DISTCA_CHECK_INPUT(options.tokens_per_chunk <= kMaxDrawnTokens / options.chunks,
                     "--chunks {} of --tokens-per-chunk {}: at most {} tokens can be drawn", options.chunks,
                     options.tokens_per_chunk, kMaxDrawnTokens);
  DISTCA_CHECK_INPUT(static_cast<double>(options.tokens_per_chunk) * scale >= kTileRows,
                     "--tokens-per-chunk {} at --scale {}: a chunk needs at least {} rows",
                     options.tokens_per_chunk, options.scale, kTileRows);
  return scaled(sample_documents(distribution_named(options.distribution), options.chunks,
                                 options.tokens_per_chunk, options.seed),
                scale);
}

Layout layout_of(const DocumentsOptions& options) {
  const Documents documents = documents_of(options);
  try {
    return pack_documents(documents);
  } catch (const InputError& error) {
    throw InputError(options.docs.empty() ? error.what() : options.docs + ": " + error.what());
  }
}

}  // namespace distca
