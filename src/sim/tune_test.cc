#include "sim/tune.h"

#include <gtest/gtest.h>

#include <regex>

#include "base/check.h"
#include "base/json.h"
#include "sim/report_page.h"

namespace distca {
namespace {

ClusterSetup small_cluster() {
  ClusterSetup setup;
  setup.model = {"8b", 4096, 32, 32, 8, 128, 14336, 128256, false};
  setup.profile = find_device_profile("h200");
  setup.gpus = 32;
  setup.context = 65536;
  setup.tokens = 16 * setup.context;
  setup.tolerance = 0.02;
  setup.search_moves = 20;
  return setup;
}

std::vector<StepDocuments> one_draw(const ClusterSetup& setup) {
  return {drawn_documents(setup, Distribution::kWlbllm, 1)};
}

TEST(Tune, ChoosesNothingSlowerThanWhatItTried) {
  const Tuning tuning = tune(small_cluster(), one_draw);
  EXPECT_TRUE(tuning.best.fits);
  ASSERT_GE(tuning.cad.size(), 4u);
  for (const auto& list : {tuning.cad, tuning.variations}) {
    for (const TuneCandidate& candidate : list) {
      if (candidate.fits) {
        EXPECT_LE(tuning.best.seconds, candidate.seconds * 1.005 + 1e-12) << candidate.name();
      }
    }
  }
  // The best's seconds are those of simulating it.
  const ClusterSetup& setup = tuning.best.setup;
  EXPECT_DOUBLE_EQ(simulate_step(setup, tuning.best.choice, one_draw(setup)[0]).seconds, tuning.best.seconds);
  EXPECT_NE(tuning_text(tuning).find("Should you disaggregate?"), std::string::npos);
  const Json json = parse_json(tuning_json(tuning), "tuning");
  EXPECT_DOUBLE_EQ(json["speedup"].get<double>(), tuning.best_baseline.seconds / tuning.best.seconds);
}

TEST(Tune, SaysWhenNothingFits) {
  ClusterSetup setup = small_cluster();
  setup.memory_limit = 1e9;
  EXPECT_THROW(tune(setup, one_draw), InputError);
}

TEST(ReportPage, IsOneFileWithoutScriptsThatShowsEveryPolicy) {
  const ClusterSetup setup = small_cluster();
  const std::vector<StepDocuments> draws = one_draw(setup);
  const Study study = run_study(setup, {policy_choice("none", 1), policy_choice("cad", 1)}, draws);
  ReportInputs inputs;
  inputs.study = &study;
  inputs.cad = 1;
  simulate_step(setup, study.rows[0].choice, draws[0], &inputs.base_detail);
  simulate_step(setup, study.rows[1].choice, draws[0], &inputs.cad_detail);
  inputs.scale = scale_points(study, study.rows[0].choice, study.rows[1].choice, Distribution::kWlbllm, 1);
  EXPECT_FALSE(inputs.scale.empty());
  const std::string page = report_page(inputs);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "no network";
  EXPECT_NE(page.find("prefers-color-scheme: dark"), std::string::npos);
  for (const char* part : {">none<", ">cad<", "Timelines", "Bytes between ranks", "Speed-up against scale"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  const auto count = [&](const char* pattern) {
    const std::regex regex(pattern);
    return std::distance(std::sregex_iterator(page.begin(), page.end(), regex), std::sregex_iterator());
  };
  EXPECT_EQ(count("<svg"), count("</svg>"));
  EXPECT_EQ(count("<section"), count("</section>"));
  EXPECT_EQ(count("\"-?(nan|inf)\""), 0);
  // The matrix holds what the step exchanges, of one device of each tensor-parallel group.
  double bytes = 0;
  for (const auto& row : inputs.cad_detail.bytes) {
    for (const double sent : row) bytes += sent;
  }
  EXPECT_NEAR(bytes * 8 / study.rows[1].draws[0].exchanged_bytes, 1, 1e-9);
}

}  // namespace
}  // namespace distca
