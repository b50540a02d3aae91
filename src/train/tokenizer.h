// Text to tokens. Bytes need nothing and suit experiments; SentencePiece models are what Llama-like models of
// the field come with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace distca {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Tokens are in [0, vocabulary()), the one that ends a document among them.
  virtual int64_t vocabulary() const = 0;
  virtual int64_t end_of_document() const = 0;
};

/// "bytes": a token for each byte, and 256 ends a document. Otherwise the path of a SentencePiece model,
/// whose end-of-sentence token ends a document. Throws InputError that names a model that can't be used.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace distca
