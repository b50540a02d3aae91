#include "train/tokenizer.h"

#ifdef DISTCA_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

#include "base/check.h"
#include "base/file.h"

namespace distca {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  int64_t vocabulary() const override { return 257; }
  int64_t end_of_document() const override { return 256; }
};

#ifdef DISTCA_SENTENCEPIECE

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : path_(path) {
    const MappedFile file(path);
    const bool loaded = !file.bytes().empty() && processor_.LoadFromSerializedProto(file.bytes()).ok();
    DISTCA_CHECK_INPUT(loaded, "{}: is not a SentencePiece model", path);
    DISTCA_CHECK_INPUT(processor_.eos_id() >= 0, "{}: has no end-of-sentence token to end documents with",
                       path);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int> tokens;
    const auto status = processor_.Encode(text, &tokens);
    DISTCA_CHECK(status.ok(), "{}: {} bytes of text can't be encoded: {}", path_, text.size(),
                 status.ToString());
    return {tokens.begin(), tokens.end()};
  }
  int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  int64_t end_of_document() const override { return processor_.eos_id(); }

 private:
  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
};

#endif

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
#ifdef DISTCA_SENTENCEPIECE
  return std::make_unique<SentencePieceTokenizer>(name);
#else
  throw InputError(
      format("{}: this build reads no SentencePiece models; 'bytes' is the one tokenizer", name));
#endif
}

}  // namespace distca
