#include "train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "base/check.h"

namespace distca {
namespace {

using testing::HasSubstr;

constexpr const char* kLeast = "[data]\npath = \"text\"\n[model]\nconfig = \"tiny\"\n";

Config parse(const std::string& more, const std::vector<std::string>& overrides = {}) {
  return parse_config(kLeast + more, "run.toml", overrides);
}

std::string error_of(const std::string& more, const std::vector<std::string>& overrides = {}) {
  try {
    parse(more, overrides);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, ReadsEveryTypeOfValue) {
  const Config config = parse(
      "[train]\nsteps = 7\nlr = 1\nmin_lr = 0.5\nmetrics = \"m.jsonl\"\n"
      "[attention]\npolicy = \"none\"\n[parallel]\nspeeds = [1, 0.5]\n[checkpoint]\nkeep = 3\n");
  EXPECT_EQ(config.data.path, "text");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.train.lr, 1);
  EXPECT_EQ(config.train.metrics, "m.jsonl");
  EXPECT_EQ(config.attention.policy, "none");
  EXPECT_THAT(config.parallel.speeds.given, testing::ElementsAre(1, 0.5));
  EXPECT_EQ(config.checkpoint.keep, 3);
  EXPECT_EQ(config.train.nano_batches, 2) << "the default";
}

TEST(Config, OverridesReplaceWhatTheFileSaysAndTextsMayGoWithoutQuotes) {
  const Config config =
      parse("[train]\nsteps = 7\n",
            {"train.steps=9", "data.path=/a b/c=d", "model.config=\"x.json\"", "data.split_documents=true",
             "checkpoint.dir=123", "train.lr=.25", "attention.tolerance=1."});
  EXPECT_EQ(config.train.lr, .25);
  EXPECT_EQ(config.attention.tolerance, 1);
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.data.path, "/a b/c=d");
  EXPECT_EQ(config.model.config, "x.json");
  EXPECT_TRUE(config.data.split_documents);
  EXPECT_EQ(config.checkpoint.dir, "123");
}

TEST(Config, UnknownKeyNamesFileLineAndTheNearestKey) {
  EXPECT_EQ(error_of("[train]\nstep = 1\n"),
            "run.toml:6: unknown key train.step; the nearest is train.steps");
  EXPECT_THAT(error_of("[parallel]\n\nwindow = 1\n"),
              HasSubstr("run.toml:7: unknown key parallel.window; the "
                        "nearest is data.window"));
  EXPECT_THAT(error_of("[atention]\npolicy = \"cad\"\n"), HasSubstr("the nearest is attention.policy"));
  EXPECT_THAT(error_of("[nothing]\n"), HasSubstr("run.toml:5: unknown section [nothing]"));
  EXPECT_THAT(error_of("", {"train.lrr=1"}),
              HasSubstr("--set train.lrr=1: unknown key train.lrr; the nearest "
                        "is train.lr"));
}

TEST(Config, MistypedValueNamesPlaceKeyAndValue) {
  EXPECT_EQ(error_of("[train]\nsteps = \"ten\"\n"),
            "run.toml:6: train.steps takes an integer, not the text \"ten\"");
  EXPECT_THAT(error_of("[train]\nsteps = 1.5\n"),
              HasSubstr("train.steps takes an integer, not the number 1.5"));
  EXPECT_THAT(error_of("[train]\nlr = true\n"), HasSubstr("train.lr takes a number, not true"));
  EXPECT_THAT(error_of("[train]\nmetrics = 3\n"), HasSubstr("train.metrics takes a text, not the integer 3"));
  EXPECT_THAT(error_of("[parallel]\nspeeds = 3\n"), HasSubstr("takes a list of numbers"));
  EXPECT_THAT(error_of("[parallel]\nspeeds = [\"a\"]\n"), HasSubstr("takes numbers"));
  EXPECT_THAT(error_of("[train.lr]\nx = 1\n"), HasSubstr("takes a number, not a section"));
  EXPECT_THAT(error_of("", {"train.steps=ten"}), HasSubstr("not the text \"ten\""));
  EXPECT_THAT(error_of("", {"train.steps=1\nlr = 2"}), HasSubstr("takes an integer"));
  EXPECT_THAT(error_of("", {"train.lr=.x"}), HasSubstr("takes a number, not the text \".x\""));
  EXPECT_THAT(error_of("", {"train.lr="}), HasSubstr("takes a number, not the text \"\""));
}

TEST(Config, ValuesOutOfRangeNameTheKeyAndTheLimit) {
  EXPECT_EQ(error_of("[train]\nsteps = 0\n"), "run.toml:6: train.steps = 0 is less than 1");
  EXPECT_THAT(error_of("[attention]\ntolerance = 2\n"), HasSubstr("attention.tolerance = 2 is more than 1"));
  EXPECT_THAT(error_of("[train]\nlr = nan\n"), HasSubstr("train.lr is not a finite number"));
  EXPECT_THAT(error_of("[attention]\npolicy = \"best\"\n"),
              HasSubstr("attention.policy = \"best\" is none of: cad, none, wlb, cp, cp-seq"));
}

TEST(Config, ValuesThatContradictEachOtherAreAnError) {
  EXPECT_THAT(error_of("", {"train.tokens_per_batch=1001"}), HasSubstr("not a multiple"));
  EXPECT_THAT(error_of("", {"data.context=5000"}), HasSubstr("more than a nano-batch of 4096 rows"));
  EXPECT_THAT(error_of("", {"train.min_lr=1"}), HasSubstr("min_lr = 1 is more than"));
  EXPECT_THAT(error_of("", {"checkpoint.every=5"}), HasSubstr("needs checkpoint.dir"));
  EXPECT_THAT(error_of("", {"checkpoint.resume=latest"}), HasSubstr("needs checkpoint.dir"));
  EXPECT_THAT(error_of("", {"data.path="}), HasSubstr("data.path is not given"));
}

TEST(Config, BrokenFilesAndOverridesAreOneLine) {
  EXPECT_THAT(error_of("[train\n"), HasSubstr("run.toml:5:"));
  EXPECT_THAT(error_of("steps = 3\n[train]\nsteps = 4\nsteps = 5\n"), HasSubstr("run.toml:"));
  EXPECT_THAT(error_of("", {"train.steps"}), HasSubstr("it takes section.key=value"));
  EXPECT_THAT(error_of("", {"steps=3"}), HasSubstr("it takes section.key=value"));
  EXPECT_THROW(read_config("/nowhere/run.toml"), InputError);
  EXPECT_THROW(read_config("/tmp"), InputError);
  for (const char* bad : {"[train\n", "[a]\nx = \"\n", "[train]\nsteps = \"ten\"\n"})
    EXPECT_EQ(error_of(bad).find('\n'), std::string::npos) << error_of(bad);
}

TEST(Config, TopLevelKeyIsUnknown) {
  try {
    parse_config("steps = 3\n", "run.toml");
    FAIL() << "no error was thrown";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "run.toml:1: unknown key steps; the nearest is train.steps");
  }
}

TEST(Config, SpeedsAreAListOrMeasured) {
  EXPECT_TRUE(parse("", {"parallel.speeds=measured"}).parallel.speeds.measured);
  EXPECT_THAT(parse("", {"parallel.speeds=measured", "parallel.speeds=[2, 1]"}).parallel.speeds.given,
              testing::ElementsAre(2, 1));
  EXPECT_THAT(error_of("", {"parallel.speeds=fast"}), HasSubstr("takes a list of numbers or \"measured\""));
  EXPECT_THAT(error_of("", {"parallel.speeds=[1, 0]"}), HasSubstr("less than 1e-06"));
}

TEST(Config, KeysHaveNamesOfTheirOwnAndDefaultsWithinTheirLimits) {
  Config config;
  std::set<std::string> names;
  for (const ConfigKey& key : config_keys(config)) {
    EXPECT_TRUE(names.insert(key.full_name()).second) << key.full_name();
    const auto* number = std::get_if<double*>(&key.slot);
    const auto* whole = std::get_if<int64_t*>(&key.slot);
    EXPECT_TRUE(number == nullptr || **number >= key.least) << key.full_name();
    EXPECT_TRUE(whole == nullptr || **whole >= key.least) << key.full_name();
    const auto* text = std::get_if<std::string*>(&key.slot);
    if (text != nullptr && !key.choices.empty()) {
      EXPECT_THAT(key.choices, testing::Contains(**text));
    }
  }
}

TEST(Config, DocumentationListsExactlyTheseKeys) {
  const std::string path = DISTCA_SOURCE_DIR "/docs/configuration.md";
  std::ifstream in(path);
  std::ostringstream page;
  page << in.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(config_table()))
      << path << " is out of date; `build/distca train --keys` prints the table";
}

}  // namespace
}  // namespace distca
