#include "train/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "base/check.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

template <typename... Values>
std::string pack(const Values&... values) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return bytes;
}

const std::string kMagic("MMIDIDX\0\0", 9);

/// Two documents of sequences {3}, {0, 2} of uint16: 10 bytes of tokens.
std::string good_index() {
  return kMagic + pack(uint64_t{1}, uint8_t{8}, uint64_t{3}, uint64_t{3}) + pack(3, 0, 2) +
         pack(int64_t{0}, int64_t{6}, int64_t{6}) + pack(int64_t{0}, int64_t{1}, int64_t{3});
}

void expect_error(const std::string& bytes, int64_t bin_bytes, const std::string& part) {
  try {
    const DatasetIndex index(bytes, bin_bytes, "d.idx");
    ADD_FAILURE() << "accepted where an error with '" << part << "' was due";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(testing::StartsWith("d.idx"), HasSubstr(part)));
  }
}

template <typename T>
std::string with(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}

TEST(DatasetIndex, DocumentsAreRunsOfSequences) {
  const std::string bytes = good_index();
  const DatasetIndex index(bytes, 10, "d.idx");
  EXPECT_EQ(index.type(), TokenType::kUInt16);
  EXPECT_EQ(index.documents(), 2);
  EXPECT_EQ(index.sequences(), 3);
  EXPECT_EQ(index.tokens(), 5);
  EXPECT_EQ(index.document_length(0), 3);
  EXPECT_EQ(index.document_length(1), 2);
  const std::string multimodal = bytes + std::string(3, '\0');
  EXPECT_EQ(DatasetIndex(multimodal, 10, "d.idx").documents(), 2);
}

TEST(DatasetIndex, EveryTruncationIsAnError) {
  const std::string bytes = good_index();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    EXPECT_THROW(DatasetIndex(part, 10, "d.idx"), InputError) << size;
  }
  for (int64_t bin_bytes = 0; bin_bytes < 10; ++bin_bytes) expect_error(bytes, bin_bytes, "truncated");
}

TEST(DatasetIndex, InconsistentTablesAreErrors) {
  const std::string good = good_index();
  expect_error("x" + good, 10, "is not the index of a data set");
  expect_error(with(good, 9, uint64_t{2}), 10, "version 2");
  expect_error(with(good, 17, uint8_t{0}), 10, "0 is no token type");
  expect_error(with(good, 17, uint8_t{9}), 10, "9 is no token type");
  for (const uint64_t count : {uint64_t{4}, uint64_t{1} << 60, uint64_t{1} << 62, ~uint64_t{0}}) {
    expect_error(with(good, 18, count), 10, "truncated");
    expect_error(with(good, 26, count), 10, "truncated");
  }
  expect_error(with(good, 26, uint64_t{0}), 10, "truncated");
  expect_error(with(good, 26, uint64_t{2}), 10, "8 bytes follow its tables");
  expect_error(good + "x", 10, "1 bytes follow its tables");
  expect_error(good + "\1\1\1", 10, "not text");
  expect_error(with(good, 34, int32_t{-1}), 10, "has -1 tokens");
  expect_error(with(good, 34, INT32_MAX), 10, "truncated");
  expect_error(with(good, 46, int64_t{-2}), 10, "from byte -2");
  expect_error(with(good, 46, INT64_MAX), 10, "truncated");
  expect_error(with(good, 42, int32_t{1}), 10, "not a pair");
  expect_error(good, 11, "not a pair");
  expect_error(with(good, 70, int64_t{1}), 10, "document 0 begins at sequence 1");
  expect_error(with(good, 78, int64_t{4}), 10, "document 1 begins at sequence 4");
  expect_error(with(good, 78, int64_t{-1}), 10, "document 1 begins at sequence -1");
  expect_error(with(good, 86, int64_t{2}), 10, "end at sequence 2 of 3");
}

class IndexedDatasetOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("distca_dataset_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    prefix_ = (folder_ / "d").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<int64_t> read(const IndexedDataset& dataset, int64_t document, Span tokens) const {
    std::vector<int64_t> out(static_cast<size_t>(tokens.size()), -7);
    dataset.read(document, tokens, out.data());
    return out;
  }

  fs::path folder_;
  std::string prefix_;
};

struct Range {
  TokenType type;
  int64_t least, most;
};

TEST_F(IndexedDatasetOnDisk, EveryTypeKeepsItsWholeRange) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<Range> ranges = {{TokenType::kUInt8, 0, 255},
                                     {TokenType::kInt8, -128, 127},
                                     {TokenType::kInt16, -32768, 32767},
                                     {TokenType::kUInt16, 0, 65535},
                                     {TokenType::kInt32, -(int64_t{1} << 31), (int64_t{1} << 31) - 1},
                                     {TokenType::kInt64, -most - 1, most},
                                     {TokenType::kFloat32, -(1 << 24), 1 << 24},
                                     {TokenType::kFloat64, -(int64_t{1} << 53), int64_t{1} << 53}};
  for (const Range& range : ranges) {
    SCOPED_TRACE(token_type_name(range.type));
    EXPECT_EQ(find_token_type(token_type_name(range.type)), range.type);
    const std::vector<std::vector<int64_t>> documents = {{1, 2, 3}, {}, {range.least, 5, range.most}, {7}};
    IndexedDatasetWriter writer(prefix_, range.type);
    for (const auto& document : documents) writer.add_document(document);
    if (range.type != TokenType::kInt64) {
      EXPECT_THROW(writer.add_document(std::vector<int64_t>{range.most + 1}), Error);
      EXPECT_THROW(writer.add_document(std::vector<int64_t>{range.least - 1}), Error);
    }
    writer.commit();
    const IndexedDataset dataset(prefix_);
    EXPECT_EQ(dataset.index().type(), range.type);
    ASSERT_EQ(dataset.index().documents(), 4);
    EXPECT_EQ(dataset.index().tokens(), 7);
    for (int64_t i = 0; i < 4; ++i) {
      const auto& document = documents[static_cast<size_t>(i)];
      EXPECT_EQ(read(dataset, i, {0, dataset.index().document_length(i)}), document);
    }
    EXPECT_EQ(read(dataset, 2, {1, 2}), std::vector<int64_t>{5});
    EXPECT_EQ(read(dataset, 2, {3, 3}), std::vector<int64_t>{});
    EXPECT_THROW(read(dataset, 2, {1, 4}), Error);
    EXPECT_THROW(read(dataset, 4, {0, 0}), Error);
  }
  EXPECT_THROW(find_token_type("int128"), InputError);
}

TEST_F(IndexedDatasetOnDisk, RangesCrossTheSequencesOfADocument) {
  write_file_atomically(prefix_ + ".idx", kMagic + pack(uint64_t{1}, uint8_t{1}, uint64_t{3}, uint64_t{2}) +
                                              pack(2, 0, 3) + pack(int64_t{0}, int64_t{2}, int64_t{2}) +
                                              pack(int64_t{0}, int64_t{3}));
  write_file_atomically(prefix_ + ".bin", "\1\2\3\4\5");
  const auto dataset = std::make_shared<IndexedDataset>(prefix_);
  const TokenSource source = token_source(dataset);
  EXPECT_EQ(source.documents, 1);
  EXPECT_EQ(source.length(0), 5);
  for (int64_t begin = 0; begin <= 5; ++begin) {
    for (int64_t end = begin; end <= 5; ++end) {
      std::vector<int64_t> expected, out(static_cast<size_t>(end - begin));
      for (int64_t i = begin; i < end; ++i) expected.push_back(i + 1);
      source.read(0, {begin, end}, out.data());
      EXPECT_EQ(out, expected);
    }
  }
}

TEST_F(IndexedDatasetOnDisk, FloatingTokensMustBeWhole) {
  for (const float value : {1.5F, std::numeric_limits<float>::quiet_NaN(), 1e30F}) {
    write_file_atomically(prefix_ + ".idx", kMagic + pack(uint64_t{1}, uint8_t{7}, uint64_t{1}, uint64_t{2}) +
                                                pack(1, int64_t{0}, int64_t{0}, int64_t{1}));
    write_file_atomically(prefix_ + ".bin", pack(value));
    EXPECT_THROW(read(IndexedDataset(prefix_), 0, {0, 1}), InputError);
  }
}

TEST_F(IndexedDatasetOnDisk, MissingFilesAreNamed) {
  EXPECT_THROW(IndexedDataset{prefix_}, InputError);
  IndexedDatasetWriter writer(prefix_, TokenType::kUInt8);
  writer.add_document({});
  writer.commit();
  EXPECT_EQ(IndexedDataset(prefix_).index().tokens(), 0);
  fs::remove(prefix_ + ".bin");
  try {
    IndexedDataset dataset(prefix_);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(prefix_ + ".bin"));
  }
}

TEST_F(IndexedDatasetOnDisk, AnUnfinishedWriterLeavesNothingAndTheOldPairAlone) {
  {
    IndexedDatasetWriter writer(prefix_, TokenType::kUInt8);
    writer.add_document(std::vector<int64_t>{1, 2});
    writer.commit();
    IndexedDatasetWriter unfinished(prefix_, TokenType::kInt64);
    unfinished.add_document(std::vector<int64_t>{3});
  }
  EXPECT_EQ(read(IndexedDataset(prefix_), 0, {0, 2}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

}  // namespace
}  // namespace distca
