#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

void expect_error(const std::string& file, const std::string& part) {
  try {
    parse_safetensors(file, "w.safetensors");
    ADD_FAILURE() << "accepted where an error with '" << part << "' was due";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::StartsWith("w.safetensors"), HasSubstr(part)));
  }
}

const char* const kGood = R"({"b":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11]},
    "__metadata__":{"format":"pt"}, "a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
    "none":{"dtype":"F64","shape":[5,0],"data_offsets":[3,3]}, "s":{"dtype":"I64","shape":[],"data_offsets":[11,19]}} )";

TEST(Safetensors, TensorsAreListedInTheOrderOfTheirBytes) {
  const SafetensorsHeader header = parse_safetensors(file_of(kGood, std::string(19, 'x')), "w");
  ASSERT_EQ(header.tensors.size(), 4U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "none");
  EXPECT_EQ(header.tensors[2].name, "b");
  EXPECT_EQ(header.tensors[2].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header.tensors[2].dtype, "F32");
  EXPECT_EQ(header.tensors[3].end, 19);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_begin, 8 + static_cast<int64_t>(std::strlen(kGood)));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file = file_of(kGood, std::string(19, 'x'));
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THROW(parse_safetensors(file.substr(0, size), "w"), InputError) << size;
  }
  expect_error(file + "x", "something is left over");
  expect_error(file.substr(0, file.size() - 1), "truncated");
}

TEST(Safetensors, LengthsThatCantBeAreErrors) {
  std::string file = file_of(kGood, std::string(19, 'x'));
  for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{100'000'001}, file.size() - 7}) {
    std::memcpy(file.data(), &length, 8);
    expect_error(file, "header is said to have");
  }
  expect_error("", "0 bytes");
}

TEST(Safetensors, MalformedHeadersAreErrors) {
  const auto one = [](const std::string& tensor) { return file_of("{\"t\":" + tensor + "}", "1234"); };
  expect_error(file_of("", ""), "not JSON");
  expect_error(file_of("[]", ""), "not a JSON object");
  expect_error(file_of(std::string(100000, '['), ""), "not JSON");
  expect_error(file_of(R"({"t":1,"t":2})", ""), "'t' stands there twice");
  expect_error(one("3"), "not described by an object");
  expect_error(one(R"({"shape":[4],"data_offsets":[0,4]})"), "dtype is missing");
  expect_error(one(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})"), "dtype 'F31' is not known");
  expect_error(one(R"({"dtype":"U8","data_offsets":[0,4]})"), "shape is missing");
  expect_error(one(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"), "shape holds something else");
  expect_error(one(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})"), "shape holds something else");
  expect_error(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]})"),
               "something else");
  expect_error(one(R"({"dtype":"U8","shape":[4],"data_offsets":[0]})"), "not a begin and an end");
  expect_error(one(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"), "not a begin and an end");
  expect_error(one(R"({"dtype":"U8","shape":[5],"data_offsets":[0,4]})"), "don't make the 4 bytes");
  expect_error(one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"), "don't make");
  expect_error(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), "don't make");
  expect_error(one(R"({"dtype":"U8","shape":[3],"data_offsets":[1,4]})"), "a gap");
  expect_error(one(R"({"dtype":"U8","shape":[5],"data_offsets":[0,5]})"), "truncated");
  expect_error(one(R"({"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]})"),
               "truncated");
  expect_error(file_of(R"({"__metadata__":{"a":1}})", ""), "'a' is not a string");
  expect_error(file_of(R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
      "u":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
                       "1234"),
               "an overlap");
}

class SafetensorsOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("distca_safetensors_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& tensor) const {
    SafetensorsWriter writer(path(name), {{tensor, "U8", {2}, 0, 0}});
    writer.append("ab");
    writer.commit();
  }
  void expect_open_error(const std::string& name, const std::string& part) const {
    try {
      open_safetensors(path(name));
      ADD_FAILURE() << "accepted where an error with '" << part << "' was due";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

  fs::path folder_;
};

TEST_F(SafetensorsOnDisk, WhatIsWrittenIsReadBack) {
  const std::string name = "a \"quoted\" näme";
  SafetensorsWriter writer(path("w"),
                           {{name, "I16", {2, 2}, 0, 0}, {"z", "F64", {0}, 0, 0}, {"y", "U8", {}, 0, 0}},
                           {{"step", "7"}});
  writer.append("12345678");
  writer.append("");
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_THROW(writer.append("too long"), Error);
  SafetensorsWriter again(path("w"),
                          {{name, "I16", {2, 2}, 0, 0}, {"z", "F64", {0}, 0, 0}, {"y", "U8", {}, 0, 0}},
                          {{"step", "7"}});
  for (const char* bytes : {"12345678", "", "9"}) again.append(bytes);
  again.commit();

  const SafetensorsFile file(path("w"));
  ASSERT_NE(file.find(name), nullptr);
  EXPECT_EQ(file.bytes(*file.find(name)), "12345678");
  EXPECT_EQ(file.bytes(*file.find("y")), "9");
  EXPECT_EQ(file.find("z")->shape, std::vector<int64_t>{0});
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_EQ(file.header().metadata.at("step"), "7");
  EXPECT_EQ(file.header().data_begin % 8, 0);
}

TEST_F(SafetensorsOnDisk, ShardsAreFoundThroughTheirIndex) {
  write("one.safetensors", "a");
  write("two.safetensors", "b");
  write_file_atomically(path("model.safetensors.index.json"),
                        R"({"weight_map":{"b":"two.safetensors","a":"one.safetensors"}})");
  EXPECT_EQ(open_safetensors(folder_.string()).size(), 2U);
  write("model.safetensors", "c");
  const std::vector<SafetensorsFile> files = open_safetensors(folder_.string());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_NE(files[0].find("c"), nullptr);
}

TEST_F(SafetensorsOnDisk, WrongIndexesAreErrorsThatNameTheTensor) {
  write("one.safetensors", "a");
  SafetensorsWriter both(path("both.safetensors"), {{"a", "U8", {1}, 0, 0}, {"b", "U8", {1}, 0, 0}});
  both.append("a");
  both.append("b");
  both.commit();
  const auto index = [&](const std::string& map) {
    write_file_atomically(path("i.json"), R"({"weight_map":)" + map + "}");
  };
  index(R"({"a":"three.safetensors"})");
  expect_open_error("i.json", "three.safetensors");
  index(R"({"b":"one.safetensors"})");
  expect_open_error("i.json", "tensor 'b' is not in one.safetensors");
  index(R"({"a":"../one.safetensors"})");
  expect_open_error("i.json", "not a file of this folder");
  index(R"({"a":"one.safetensors","b":"both.safetensors"})");
  expect_open_error("i.json", "tensor 'a' is in ");
  index("[]");
  expect_open_error("i.json", "weight_map");
  fs::create_directories(path("empty"));
  expect_open_error("empty", "holds neither");
  expect_open_error("nowhere.safetensors", "nowhere.safetensors");
}

}  // namespace
}  // namespace distca
