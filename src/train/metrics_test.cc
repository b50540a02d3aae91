#include "train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

std::vector<int64_t> steps_in(const std::string& path) {
  std::ifstream in(path);
  std::vector<int64_t> steps;
  for (std::string line; std::getline(in, line);) steps.push_back(Json::parse(line).at("step"));
  return steps;
}

TEST(Metrics, LineHasTheDocumentedKeysAndAllDigitsOfTheLoss) {
  StepMetrics metrics;
  metrics.loss = 0.1 + 0.2;
  metrics.digest = 0xabc;
  const Json line = Json::parse(metrics_line(metrics));
  for (const char* key : {"step", "loss", "tokens", "targets", "padding", "step_s", "tokens_per_s", "lr",
                          "grad_norm", "load_max_over_mean", "bytes", "wait_s", "plan_ms", "digest"})
    EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_EQ(line["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(line["digest"], "0000000000000abc");
  EXPECT_EQ(metrics_line(metrics).find('\n'), std::string::npos);
}

TEST(Metrics, SpeedsAndIdleRanksAreInTheLineWhereThereAreAny) {
  StepMetrics metrics;
  EXPECT_FALSE(Json::parse(metrics_line(metrics)).contains("speeds"));
  EXPECT_FALSE(Json::parse(metrics_line(metrics)).contains("idle_done"));
  metrics.speeds = {1, 0.5};
  metrics.idle_load = 3, metrics.idle_share = 4;
  const Json line = Json::parse(metrics_line(metrics));
  EXPECT_EQ(line["speeds"], (std::vector<double>{1, 0.5}));
  EXPECT_EQ(line["idle_done"], 0.75);
}

TEST(Metrics, AResumedRunDropsTheLinesOfTheStepsItRedoesAndAHalfWrittenOne) {
  const std::string path = testing::TempDir() + "metrics.jsonl";
  std::filesystem::remove(path);
  const auto write = [&](int64_t first, int64_t last) {
    MetricsFile file(path, first);
    for (int64_t step = first; step <= last; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      file.write(metrics);
    }
  };
  write(0, 5);
  EXPECT_THAT(steps_in(path), testing::ElementsAre(0, 1, 2, 3, 4, 5));
  std::ofstream(path, std::ios::app) << "{\"step\": 1, \"lo";
  write(3, 3);
  EXPECT_THAT(steps_in(path), testing::ElementsAre(0, 1, 2, 3));
  write(0, 0);
  EXPECT_THAT(steps_in(path), testing::ElementsAre(0)) << "a new run starts a new file";
  EXPECT_THROW(MetricsFile("/nowhere/metrics.jsonl", 0), Error);
}

TEST(Metrics, ProgressIsReadable) {
  ProgressLine progress(100);
  StepMetrics metrics;
  metrics.step = 9, metrics.loss = 3.14159, metrics.tokens_per_s = 41230.4, metrics.step_s = 2;
  metrics.load_max_over_mean = 1.0499;
  EXPECT_EQ(progress.line(metrics), "step 10/100 · loss 3.1416 · 41,230 tokens/s · load 1.05 · 3m00s left");
}

TEST(Metrics, NumbersAndDurations) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(duration(0.2), "0s");
  EXPECT_EQ(duration(59.6), "1m00s");
  EXPECT_EQ(duration(3 * 3600 + 7 * 60 + 4), "3h07m");
}

}  // namespace
}  // namespace distca
