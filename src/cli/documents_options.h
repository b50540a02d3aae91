// The options with which a command is given a batch of documents: --docs FILE, or --distribution and its
// companions.
#pragma once

#include <cstdint>
#include <string>

#include "plan/layout.h"

namespace CLI {
class App;
}

namespace distca {

struct DocumentsOptions {
  std::string docs;          // a file of "doc_lengths"
  std::string distribution;  // wlbllm or prolong
  int32_t chunks = 8;
  int64_t tokens_per_chunk = 131072;
  uint64_t seed = 42;
  std::string scale = "1";  // of lengths: "1/8" or "0.125"
};

void add_documents_options(CLI::App& command, DocumentsOptions& options);

/// The documents that the options name. Throws InputError where they name none, two, or something wrong, or
/// where a chunk has fewer than 128 rows.
Documents documents_of(const DocumentsOptions& options);

/// The same packed, a rank a chunk.
Layout layout_of(const DocumentsOptions& options);

}  // namespace distca
