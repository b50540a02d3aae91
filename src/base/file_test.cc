#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

class File : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("distca_file_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

TEST_F(File, WhatWasCommittedIsMappedBack) {
  std::string text;
  for (int i = 0; i < 1'500'000; ++i) text.push_back(static_cast<char>(i * 31 % 251));
  AtomicFile file(path("a"));
  file.write(text.substr(0, 1));
  file.write(text.substr(1, 1'200'000));
  file.write(text.substr(1'200'001));
  EXPECT_EQ(file.written(), 1'500'000);
  file.commit();
  MappedFile mapped(path("a"));
  EXPECT_EQ(mapped.bytes(), text);
  const MappedFile moved = std::move(mapped);
  EXPECT_EQ(moved.bytes(), text);
  EXPECT_EQ(files(), 1U);
}

TEST_F(File, EmptyFilesMapToNoBytes) {
  write_file_atomically(path("a"), "");
  EXPECT_TRUE(MappedFile(path("a")).bytes().empty());
}

TEST_F(File, WithoutCommitTheOldContentStays) {
  write_file_atomically(path("a"), "old");
  {
    AtomicFile file(path("a"));
    file.write("new");
  }
  EXPECT_EQ(MappedFile(path("a")).bytes(), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(File, FullDiskIsAnErrorThatNamesTheFileAndKeepsTheOldOne) {
  write_file_atomically(path("a"), "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_file_atomically(path("a"), std::string(5000, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr(path("a")), testing::HasSubstr("File too large")));
  EXPECT_EQ(MappedFile(path("a")).bytes(), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(File, WhatCantBeOpenedOrCreatedIsNamed) {
  EXPECT_THROW(MappedFile(path("missing")), InputError);
  EXPECT_THROW(MappedFile(folder_.string()), InputError);
  EXPECT_THROW(AtomicFile(path("no/such/folder")), Error);
}

TEST_F(File, AnOutputIsRefusedBeforeWorkStartsWhereItCantBeWritten) {
  check_can_write(path("a"));
  check_can_write("/dev/null");
  EXPECT_EQ(files(), 0U);
  EXPECT_THROW(check_can_write(""), InputError);
  EXPECT_THROW(check_can_write(folder_.string()), InputError);
  EXPECT_THROW(check_can_write(path("no/such/folder")), InputError);
  write_file_atomically(path("a"), "file");
  EXPECT_THROW(check_can_write(path("a/b")), InputError);
}

TEST_F(File, ADeviceStaysADevice) {
  write_file_atomically("/dev/null", "gone");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace distca
