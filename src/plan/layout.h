// A layout says which rank is home to which tokens. Documents lie end to end over the ranks in equal chunks;
// a document that crosses a chunk's edge continues on the next rank and keeps its prefix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/task.h"

namespace distca {

/// Throws InputError that begins with `what` unless a document may have so many tokens.
void check_document_length(int64_t length, const std::string& what);

struct Layout {
  std::vector<int64_t> doc_lengths;  // tokens of each document; 0 is allowed
  int32_t ranks = 0;                 // ranks that are home to tokens, numbered from 0; one may hold none
  int64_t rows = 0;                  // rows of each rank's token buffer, padding included: the chunk
  std::vector<Shard> shards;         // by (doc, tokens.begin); none is empty

  int64_t tokens() const;  // of all documents
  std::vector<int64_t> tokens_of_ranks() const;
};

/// Documents end to end over `ranks` equal chunks of `rows` rows; rows = 0 takes tokens ÷ ranks rounded up,
/// at least
/// 1. Throws InputError when the documents don't fit.
Layout pack_in_order(std::vector<int64_t> doc_lengths, int32_t ranks, int64_t rows = 0);

/// The "doc_lengths" file of the documentation: one list a chunk, in row order. List i starts at row i·T or
/// where the list before it ended if that is later; documents keep their flattened order as index.
struct Documents {
  std::vector<std::vector<int64_t>> chunks;
  int64_t tokens_per_chunk = 0;
};

/// Reads such a file. `scale` in (0, 1] multiplies lengths and tokens_per_chunk, rounding down. Throws
/// InputError that names the file and the place of what is wrong.
Documents read_documents(const std::string& path, double scale = 1);
Documents parse_documents(std::string_view text, const std::string& origin, double scale = 1);

/// One rank a chunk.
Layout pack_documents(const Documents& documents);

}  // namespace distca
