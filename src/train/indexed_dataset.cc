#include "train/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace distca {
namespace {

static_assert(std::endian::native == std::endian::little, "data sets are stored little endian");

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr uint64_t kVersion = 1;
constexpr size_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;  // magic, version, type, sequences, documents + 1
constexpr int64_t kSequenceBytes = 4 + 8;           // length, pointer

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Calls visit(T{}) with the C++ type of a token type.
template <typename Visit>
void with_type(TokenType type, const Visit& visit) {
  switch (type) {
    case TokenType::kUInt8:
      return visit(uint8_t{});
    case TokenType::kInt8:
      return visit(int8_t{});
    case TokenType::kInt16:
      return visit(int16_t{});
    case TokenType::kInt32:
      return visit(int32_t{});
    case TokenType::kInt64:
      return visit(int64_t{});
    case TokenType::kFloat64:
      return visit(double{});
    case TokenType::kFloat32:
      return visit(float{});
    case TokenType::kUInt16:
      return visit(uint16_t{});
  }
}

/// Whether a stored token is a whole number that int64 holds.
template <typename T>
bool whole(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::trunc(value) == value && std::fabs(value) <= T(uint64_t{1} << 62);
  }
  return true;
}

template <typename T>
bool fits(int64_t token) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr int64_t kExact = int64_t{1} << std::numeric_limits<T>::digits;
    return -kExact <= token && token <= kExact;
  } else {
    return std::in_range<T>(token);
  }
}

}  // namespace

DatasetIndex::DatasetIndex(std::string_view bytes, int64_t bin_bytes, const std::string& origin) {
  DISTCA_CHECK_INPUT(bytes.size() >= kHeaderBytes && bytes.substr(0, kMagic.size()) == kMagic,
                     "{}: is not the index of a data set", origin);
  const char* at = bytes.data() + kMagic.size();
  const auto version = load<uint64_t>(at);
  const auto code = load<uint8_t>(at + 8);
  const auto sequences = load<uint64_t>(at + 9), bounds = load<uint64_t>(at + 17);
  DISTCA_CHECK_INPUT(version == kVersion, "{}: is of version {}; {} can be read", origin, version, kVersion);
  DISTCA_CHECK_INPUT(code >= 1 && code <= 8, "{}: {} is no token type's code", origin, int{code});
  type_ = static_cast<TokenType>(code);

  const uint64_t rest = bytes.size() - kHeaderBytes;
  const bool possible = sequences <= rest / kSequenceBytes && bounds <= rest / 8;
  const uint64_t tables = possible ? sequences * kSequenceBytes + bounds * 8 : 0;
  DISTCA_CHECK_INPUT(possible && bounds > 0 && tables <= rest,
                     "{}: {} bytes can't hold {} sequences and {} document bounds: truncated", origin,
                     bytes.size(), sequences, bounds);
  // A multimodal data set has a byte more for each sequence.
  DISTCA_CHECK_INPUT(rest == tables || rest == tables + sequences, "{}: {} bytes follow its tables", origin,
                     rest - tables);
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(bounds) - 1;
  lengths_ = bytes.data() + kHeaderBytes;
  pointers_ = lengths_ + sequences_ * 4;
  first_sequences_ = pointers_ + sequences_ * 8;
  const std::string_view modes = bytes.substr(kHeaderBytes + tables);
  DISTCA_CHECK_INPUT(modes.find_first_not_of('\0') == std::string_view::npos,
                     "{}: holds sequences that are not text", origin);
  check_tables(bin_bytes, origin);
}

void DatasetIndex::check_tables(int64_t bin_bytes, const std::string& origin) {
  const int64_t size = token_bytes(type_);
  int64_t end = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = sequence_length(i), pointer = sequence_pointer(i);
    DISTCA_CHECK_INPUT(length >= 0 && pointer >= 0, "{}: sequence {} has {} tokens from byte {}", origin, i,
                       length, pointer);
    DISTCA_CHECK_INPUT(
        pointer <= bin_bytes && length * size <= bin_bytes - pointer,
        "{}: sequence {} has {} {} tokens from byte {}, but the .bin file ends at {}: truncated", origin, i,
        length, token_type_name(type_), pointer, bin_bytes);
    end = std::max(end, pointer + length * size);
    tokens_ += length;
  }
  DISTCA_CHECK_INPUT(end == bin_bytes,
                     "{}: its sequences end at byte {}, but the .bin file at {}: not a pair", origin, end,
                     bin_bytes);
  int64_t last = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    const int64_t first = first_sequence(i);
    DISTCA_CHECK_INPUT(first >= last && first <= sequences_ && (i > 0 || first == 0),
                       "{}: document {} begins at sequence {}, after {} of {}", origin, i, first, last,
                       sequences_);
    last = first;
  }
  DISTCA_CHECK_INPUT(last == sequences_, "{}: its documents end at sequence {} of {}", origin, last,
                     sequences_);
}

int64_t DatasetIndex::sequence_length(int64_t sequence) const {
  return load<int32_t>(lengths_ + sequence * 4);
}

int64_t DatasetIndex::sequence_pointer(int64_t sequence) const {
  return load<int64_t>(pointers_ + sequence * 8);
}

int64_t DatasetIndex::first_sequence(int64_t document) const {
  return load<int64_t>(first_sequences_ + document * 8);
}

int64_t DatasetIndex::document_length(int64_t document) const {
  int64_t tokens = 0;
  const int64_t end = first_sequence(document + 1);
  for (int64_t i = first_sequence(document); i < end; ++i) tokens += sequence_length(i);
  return tokens;
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix),
      idx_(prefix + ".idx"),
      bin_(prefix + ".bin"),
      index_(idx_.bytes(), static_cast<int64_t>(bin_.bytes().size()), idx_.path()) {}

void IndexedDataset::read(int64_t document, Span tokens, int64_t* out) const {
  DISTCA_CHECK(0 <= document && document < index_.documents(), "{} has no document {}", prefix_, document);
  const int64_t total = index_.document_length(document);
  DISTCA_CHECK(0 <= tokens.begin && tokens.begin <= tokens.end && tokens.end <= total,
               "tokens [{}, {}) of document {}, which has {}", tokens.begin, tokens.end, document, total);
  const int64_t size = token_bytes(index_.type());
  int64_t position = 0;  // of the sequence's first token in the document
  for (int64_t i = index_.first_sequence(document); i < index_.first_sequence(document + 1); ++i) {
    const int64_t length = index_.sequence_length(i);
    const int64_t begin = std::max<int64_t>(0, tokens.begin - position);
    const int64_t end = std::min(length, tokens.end - position);
    const char* at = bin_.bytes().data() + index_.sequence_pointer(i);
    with_type(index_.type(), [&](auto type) {
      for (int64_t k = begin; k < end; ++k) {
        const auto value = load<decltype(type)>(at + k * size);
        DISTCA_CHECK_INPUT(whole(value), "{}: token {} of document {} is {}, not a whole number", prefix_,
                           position + k, document, value);
        *out++ = static_cast<int64_t>(value);
      }
    });
    position += length;
  }
}

TokenSource token_source(std::shared_ptr<const IndexedDataset> dataset) {
  TokenSource source;
  source.name = dataset->prefix();
  source.documents = dataset->index().documents();
  source.length = [dataset](int64_t document) { return dataset->index().document_length(document); };
  source.read = [dataset](int64_t document, Span tokens, int64_t* out) {
    dataset->read(document, tokens, out);
  };
  return source;
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin") {}

void IndexedDatasetWriter::add_document(std::span<const int64_t> tokens) {
  DISTCA_CHECK(tokens.size() <= size_t{INT32_MAX},
               "{}: document {} has {} tokens, and the format holds 2³¹ − 1", prefix_, documents(),
               tokens.size());
  std::string bytes;
  bytes.reserve(tokens.size() * static_cast<size_t>(token_bytes(type_)));
  with_type(type_, [&](auto type) {
    using T = decltype(type);
    for (const int64_t token : tokens) {
      DISTCA_CHECK(fits<T>(token), "{}: token {} of document {} doesn't fit {}", prefix_, token, documents(),
                   token_type_name(type_));
      bytes.append(bytes_of(static_cast<T>(token)));
    }
  });
  bin_.write(bytes);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::commit() {
  AtomicFile idx(prefix_ + ".idx");
  const auto count = static_cast<uint64_t>(lengths_.size());
  idx.write(kMagic);
  idx.write(bytes_of(kVersion));
  idx.write(bytes_of(type_));
  idx.write(bytes_of(count));
  idx.write(bytes_of(count + 1));
  for (const int32_t length : lengths_) idx.write(bytes_of(length));
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    idx.write(bytes_of(pointer));
    pointer += length * token_bytes(type_);
  }
  for (uint64_t document = 0; document <= count; ++document) idx.write(bytes_of(document));
  // Both are on disk before either appears. An older index goes first: it would not match the new .bin.
  bin_.sync();
  idx.sync();
  std::remove(idx.path().c_str());
  bin_.commit();
  idx.commit();
}

}  // namespace distca
