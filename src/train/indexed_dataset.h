// Megatron's indexed dataset: PREFIX.bin holds the tokens of all documents end to end, PREFIX.idx says where
// each begins and of what type the tokens are. Both are mapped, so a data set may be larger than memory. The
// index is checked when it is opened: whatever it then says lies within the files. Format:
// megatron.core.datasets.indexed_dataset (Megatron Core 0.16).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "train/global_batch.h"

namespace distca {

/// How a token is stored; the values are those in the file. Floating types hold whole numbers.
enum class TokenType : uint8_t {
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUInt16 = 8,
};

int64_t token_bytes(TokenType type);
const char* token_type_name(TokenType type);  // "uint16"
/// Throws InputError that lists the types when there is none of that name.
TokenType find_token_type(std::string_view name);
/// What Megatron stores a vocabulary in: uint16 below 65,500 entries, else int32.
TokenType token_type_for(int64_t vocabulary);

/// The index, read in place. Documents are runs of sequences; usually each is one.
class DatasetIndex {
 public:
  /// Over the bytes of an .idx file, which must outlive it, for a .bin file of `bin_bytes`. Throws InputError
  /// that begins with `origin` unless every table is there and every sequence lies in the .bin file.
  DatasetIndex(std::string_view bytes, int64_t bin_bytes, const std::string& origin);

  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

  int64_t sequence_length(int64_t sequence) const;   // tokens
  int64_t sequence_pointer(int64_t sequence) const;  // its first byte in the .bin file
  /// The first of a document's sequences; of document documents(): one after the last.
  int64_t first_sequence(int64_t document) const;
  int64_t document_length(int64_t document) const;  // tokens

 private:
  void check_tables(int64_t bin_bytes, const std::string& origin);

  const char *lengths_ = nullptr, *pointers_ = nullptr, *first_sequences_ = nullptr;
  TokenType type_ = TokenType::kInt32;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
};

class IndexedDataset {
 public:
  /// Opens PREFIX.idx and PREFIX.bin. Throws InputError that names the file that is missing, truncated or
  /// inconsistent with the other.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  const DatasetIndex& index() const { return index_; }

  /// Writes tokens `tokens` of a document to `out`. Throws InputError when a floating token isn't a whole
  /// number.
  void read(int64_t document, Span tokens, int64_t* out) const;

 private:
  std::string prefix_;
  MappedFile idx_, bin_;
  DatasetIndex index_;
};

/// The data set as batches are drawn from it; it stays open as long as the result.
TokenSource token_source(std::shared_ptr<const IndexedDataset> dataset);

/// Writes a data set document by document. The pair appears at commit(), the index last, or not at all.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, TokenType type);

  /// Throws Error when a token doesn't fit the type or the document has 2³¹ tokens or more.
  void add_document(std::span<const int64_t> tokens);
  /// Throws Error that names the file when the disk is full.
  void commit();

  int64_t documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  std::string prefix_;
  TokenType type_;
  AtomicFile bin_;
  std::vector<int32_t> lengths_;
  int64_t tokens_ = 0;
};

}  // namespace distca
