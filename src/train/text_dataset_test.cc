#include "train/text_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "train/indexed_dataset.h"

#ifdef DISTCA_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

namespace distca {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class TextDataset : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("distca_text_" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "in/b/deep");
    prefix_ = path("out");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    write_file_atomically(path(name), text);
  }
  std::vector<int64_t> document(int64_t i) const {
    const IndexedDataset dataset(prefix_);
    std::vector<int64_t> tokens(static_cast<size_t>(dataset.index().document_length(i)));
    dataset.read(i, {0, static_cast<int64_t>(tokens.size())}, tokens.data());
    return tokens;
  }

  fs::path folder_;
  std::string prefix_;
};

TEST_F(TextDataset, FilesAndFoldersBecomeDocumentsInSortedOrder) {
  write("in/z.txt", "z");
  write("in/b/deep/x.txt", "\xff\n");
  write("in/b/y.txt", "");
  write("in/a.bin", std::string("a\0b", 3));
  write("single", "AB");
  fs::create_directory_symlink(path("in"), path("in/b/loop"));
  fs::create_symlink(path("nowhere"), path("in/dangling"));
  ASSERT_EQ(::mkfifo(path("in/pipe").c_str(), 0600), 0);

  const std::vector<std::string> files = find_files({path("single"), path("in")});
  EXPECT_THAT(files, ElementsAre(path("single"), path("in/a.bin"), path("in/b/deep/x.txt"), path("in/b/loop"),
                                 path("in/b/y.txt"), path("in/dangling"), path("in/pipe"), path("in/z.txt")));
  int64_t last = 0;
  const TextDatasetReport report =
      build_text_dataset(prefix_, files, *make_tokenizer("bytes"),
                         [&](const TextDatasetReport&, int64_t done) { EXPECT_EQ(done, ++last); });
  EXPECT_EQ(last, 8);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.tokens, 8);
  EXPECT_EQ(report.bytes, 5);
  EXPECT_EQ(report.empty, 1);
  EXPECT_EQ(report.binary, 1);
  EXPECT_EQ(report.unreadable, 3);
  EXPECT_THAT(document(0), ElementsAre('A', 'B', 256));
  EXPECT_THAT(document(1), ElementsAre(255, '\n', 256));
  EXPECT_THAT(document(2), ElementsAre('z', 256));
  EXPECT_EQ(IndexedDataset(prefix_).index().type(), TokenType::kUInt16);
}

TEST_F(TextDataset, FilesThatVanishAreCountedAndMissingPathsNamed) {
  write("in/z.txt", "z");
  const TextDatasetReport report =
      build_text_dataset(prefix_, {path("in/z.txt"), path("in/gone")}, *make_tokenizer("bytes"));
  EXPECT_EQ(report.documents, 1);
  EXPECT_EQ(report.unreadable, 1);
  EXPECT_THROW(find_files({path("in"), path("missing")}), InputError);
}

TEST_F(TextDataset, WithoutAnyTextNothingIsWritten) {
  write("in/y.txt", "");
  EXPECT_THROW(build_text_dataset(prefix_, find_files({path("in")}), *make_tokenizer("bytes")), InputError);
  EXPECT_THROW(build_text_dataset(prefix_, {}, *make_tokenizer("bytes")), InputError);
  EXPECT_FALSE(fs::exists(prefix_ + ".bin"));
  EXPECT_FALSE(fs::exists(prefix_ + ".bin.tmp"));
}

#ifdef DISTCA_SENTENCEPIECE

class Sentences : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return next_ == 400; }
  void Next() override { sentence_ = "document " + std::to_string(++next_ * 7919) + " is about attention"; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  int next_ = 0;
  std::string sentence_ = "document 0 is about attention";
};

/// A small model of the library's own making.
std::string train_sentencepiece(const std::string& options) {
  Sentences sentences;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--vocab_size=60 --model_type=bpe --minloglevel=2 " + options, &sentences, &model);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return model;
}

TEST_F(TextDataset, SentencePieceModelsGiveTheLibrarysTokens) {
  write("m.model", train_sentencepiece(""));
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(path("m.model"));
  EXPECT_EQ(tokenizer->vocabulary(), 60);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  const std::string text = "attention is about document 42";
  const std::vector<int64_t> tokens = tokenizer->encode(text);
  EXPECT_LT(tokens.size(), text.size());
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(path("m.model")).ok());
  std::string decoded;
  ASSERT_TRUE(processor.Decode(std::vector<int>(tokens.begin(), tokens.end()), &decoded).ok());
  EXPECT_EQ(decoded, text);

  write("in/z.txt", text);
  build_text_dataset(prefix_, {path("in/z.txt")}, *tokenizer);
  std::vector<int64_t> expected = tokens;
  expected.push_back(2);
  EXPECT_EQ(document(0), expected);
}

TEST_F(TextDataset, SentencePieceModelsThatCantServeAreNamed) {
  write("garbage.model", "not a model");
  write("empty.model", "");
  write("no_eos.model", train_sentencepiece("--eos_id=-1"));
  for (const char* name : {"garbage.model", "empty.model", "no_eos.model", "missing.model"}) {
    try {
      make_tokenizer(path(name));
      ADD_FAILURE() << name << " was accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path(name)));
    }
  }
}

#endif

}  // namespace
}  // namespace distca
