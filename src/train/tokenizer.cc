#include "train/tokenizer.h"

#ifdef DISTCA_SENTENCEPIECE
#include <c10/util/Flags.h>
#include <sentencepiece_processor.h>
#endif

#include "base/check.h"
#include "base/file.h"

#if defined(DISTCA_SENTENCEPIECE) && !defined(C10_USE_GFLAGS)
C10_DECLARE_int(minloglevel);
C10_DECLARE_bool(caffe2_use_fatal_for_enforce);
#endif

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

#ifndef C10_USE_GFLAGS
/// libsentencepiece and libc10 both export FLAGS_minloglevel, in the one an object of 32 bytes, in the other
/// an int. The loader takes c10's for both, so sentencepiece's constructor writes over c10's level of
/// logging and over its next flag, with which PyTorch aborts the program where it should throw. Libraries
/// are initialised before the program: here both flags get their defaults back. SentencePiece keeps the
/// level it goes by elsewhere.
[[maybe_unused]] const bool kFlagsRestored = [] {
  FLAGS_minloglevel = 0;
  FLAGS_caffe2_use_fatal_for_enforce = false;
  return true;
}();
#endif

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
