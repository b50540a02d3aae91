#include "sim/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/check.h"
#include "base/json.h"
#include "sim/group_work.h"
#include "sim/layers.h"
#include "sim/study.h"

namespace distca {
namespace {

ClusterSetup small_cluster(int64_t gpus) {
  ClusterSetup setup;
  setup.model = {"34b", 8192, 48, 64, 8, 128, 22016, 32000, false};
  setup.profile = find_device_profile("h200");
  setup.gpus = gpus;
  setup.context = 131072;
  setup.tokens = 2 * setup.context * std::max<int64_t>(1, gpus / 32);
  setup.tolerance = 0.02;
  return setup;
}

StepCosts costs_of(const ClusterSetup& setup) {
  return step_costs(setup.model, setup.profile, setup.tp, setup.pp, setup.recompute);
}

/// Micro-batches of nano-batches with the same documents in each.
StepDocuments repeated(const ClusterSetup& setup, const std::vector<int64_t>& documents) {
  const auto nanos = static_cast<size_t>(setup.nano_batches);
  return StepDocuments(static_cast<size_t>(setup.micro_batches), {nanos, documents});
}

double attention_of(const std::vector<int64_t>& documents) {
  return whole_attention(documents, 870);
}

TEST(Step, OneRankTakesTheSumOfItsWorkUnderEveryPolicy) {
  const ClusterSetup setup = small_cluster(8);
  ASSERT_EQ(setup.profile.fit.attention_startup_keys, 870);
  const StepDocuments documents = repeated(setup, {65536, 1024, 64512});
  const StepCosts costs = costs_of(setup);
  const double expected =
      48 * (262144 * costs.layer_per_token() + 2 * attention_of({65536, 1024, 64512}) * costs.attention()) +
      costs.update;
  for (const char* name : {"none", "wlb-1", "cp-1", "cp-seq-1", "cad", "cad-free"}) {
    const StepResult result = simulate_step(setup, policy_choice(name, 1), documents);
    EXPECT_NEAR(result.seconds / expected, 1, 1e-9) << name;
    EXPECT_NEAR(result.without_exchanges / expected, 1, 1e-9) << name;
    EXPECT_NEAR(result.balanced / expected, 1, 1e-9) << name;
    EXPECT_EQ(result.exchanged_bytes, 0) << name;
  }
}

TEST(Step, AGainThatNoMoveReachesLeavesEverythingAtHome) {
  ClusterSetup setup = small_cluster(16);
  std::vector<int64_t> lengths(65, 1024);
  lengths[0] = 65536;  // all of the first rank's rows
  const StepDocuments documents = repeated(setup, lengths);
  const auto bytes = [&] { return simulate_step(setup, policy_choice("cad", 1), documents).exchanged_bytes; };
  const double all = bytes();
  EXPECT_GT(all, 0);
  setup.min_gain = 1e-3;  // seconds of compute for a second of transfer
  EXPECT_EQ(bytes(), all);
  setup.min_gain = 1e4;
  EXPECT_EQ(bytes(), 0);
}

TEST(Step, FixedPackingWaitsForTheRankWithTheLongDocument) {
  ClusterSetup setup = small_cluster(16);
  setup.tokens = 2 * 2 * setup.context;
  const std::vector<int64_t> long_one(1, 131072), short_ones(32, 4096);
  std::vector<int64_t> both = long_one;
  both.insert(both.end(), short_ones.begin(), short_ones.end());
  const StepCosts costs = costs_of(setup);
  const StepResult result = simulate_step(setup, policy_choice("none", 1), {{both, both}});
  // Both nano-batches lie end to end: rank 0 has the first, rank 1 the second.
  const double slowest =
      48 * (262144 * costs.layer_per_token() + attention_of(both) * costs.attention()) + costs.update;
  EXPECT_NEAR(result.seconds / slowest, 1, 1e-9);
  // Disaggregated, each nano-batch has a long half and a short one.
  const StepResult cad = simulate_step(setup, policy_choice("cad", 1), {{both, both}});
  EXPECT_LT(cad.seconds, 1.04 * cad.balanced);
  EXPECT_GT(cad.exchanged_bytes, 0);
}

TEST(Step, BaselinesAgreeWithTheClosedFormOfTheRecordedRuns) {
  ClusterSetup setup = small_cluster(128);
  const StepCosts costs = costs_of(setup);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const StepDocuments documents = drawn_documents(setup, Distribution::kWlbllm, seed);
    std::vector<int64_t> all;
    for (const auto& nano : documents[0]) all.insert(all.end(), nano.begin(), nano.end());
    for (const int64_t cp : {2, 8}) {
      for (const auto& [name, cut, off] :
           {std::tuple("cp-seq", &cut_by_sequence, 0.001), std::tuple("wlb", &cut_by_document, 0.08)}) {
        double slowest = 0;
        for (const GroupWork& group : cut(all, 16 / cp, cp, 870)) {
          slowest =
              std::max(slowest, group.tokens * costs.layer_per_token() + group.busiest() * costs.attention() +
                                    group.gathered * costs.gather());
        }
        const StepResult result = simulate_step(setup, policy_choice(name, cp), documents);
        EXPECT_NEAR(result.seconds / (48 * slowest + costs.update), 1, off) << name << cp << " seed " << seed;
      }
    }
  }
}

TEST(Step, NoPolicyBeatsTheBoundAndExchangesOnlyCost) {
  for (const int64_t pp : {1, 2}) {
    ClusterSetup setup = small_cluster(64);
    setup.pp = pp;
    setup.micro_batches = pp == 1 ? 1 : 3;
    setup.tokens = setup.micro_batches * 4 * setup.context;
    setup.search_moves = 50;
    for (uint64_t seed = 0; seed < 2; ++seed) {
      const StepDocuments documents = drawn_documents(setup, Distribution::kProlong, seed);
      for (const char* name : {"none", "wlb-4", "cp-2", "cp-seq-4", "cad", "cad-free"}) {
        const StepResult result = simulate_step(setup, policy_choice(name, 1), documents);
        EXPECT_GE(result.without_exchanges, result.balanced * (1 - 1e-9))
            << name << " pp " << pp << " seed " << seed;
        EXPECT_GE(result.seconds, result.without_exchanges * (1 - 1e-9))
            << name << " pp " << pp << " seed " << seed;
      }
    }
  }
}

TEST(Step, PingPongHidesWhatASingleStreamExposes) {
  ClusterSetup setup = small_cluster(64);
  const StepDocuments documents = drawn_documents(setup, Distribution::kWlbllm, 1);
  const auto seconds = [&](Overlap overlap) {
    setup.overlap = overlap;
    return simulate_step(setup, policy_choice("cad", 1), documents).seconds;
  };
  const double pingpong = seconds(Overlap::kPingPong);
  EXPECT_LT(pingpong, 0.99 * seconds(Overlap::kSingle));
  EXPECT_LE(seconds(Overlap::kSignal), pingpong * (1 + 1e-9));
}

TEST(Step, EqualMicroBatchesFillThePipelineAsTheFormulaSays) {
  ClusterSetup setup = small_cluster(64);
  setup.pp = 4;
  setup.micro_batches = 6;
  setup.tokens = 6 * 2 * setup.context;
  const std::vector<int64_t> documents(32, 4096);  // a rank's rows are whole documents
  const StepCosts costs = costs_of(setup);
  const double stage = 12 * (131072 * costs.layer_per_token() + attention_of(documents) * costs.attention());
  const double expected = (6 + 4 - 1) * stage + costs.update;
  const StepResult result = simulate_step(setup, policy_choice("none", 1), repeated(setup, documents));
  EXPECT_NEAR(result.without_exchanges / expected, 1, 1e-9) << "(micro-batches + stages - 1) · stage";
  EXPECT_GT(result.seconds, result.without_exchanges) << "stages hand over their activations";
  EXPECT_LT(result.seconds, 1.05 * expected);
  // Idle stages serve attention, so that disaggregation has a smaller bubble.
  EXPECT_LT(simulate_step(setup, policy_choice("cad", 1), repeated(setup, documents)).without_exchanges,
            0.99 * expected);
}

TEST(Step, DedicatedServersComputeAttentionAlone) {
  ClusterSetup setup = small_cluster(40);
  setup.servers = 1;
  setup.resend = true;
  setup.tokens = 4 * setup.context;
  const StepDocuments documents = drawn_documents(setup, Distribution::kProlong, 3);
  const StepResult result = simulate_step(setup, policy_choice("cad", 1), documents);
  ASSERT_EQ(result.busy.size(), 5u);
  EXPECT_GT(result.busy[4], 0);
  EXPECT_LT(result.memory[4], 0.5 * result.memory[0]) << "a server has no weights";
}

TEST(Step, MemoryIsWeightsActivationsAndWhatServersKeep) {
  ClusterSetup setup = small_cluster(8);
  const StepDocuments documents = repeated(setup, {131072});
  const StepResult result = simulate_step(setup, policy_choice("none", 1), documents);
  const double weights = (48.0 * (8192.0 * 128 * 144 + 3 * 8192.0 * 22016) + 2 * 32000 * 8192.0) / 8 * 18;
  const double activations = 262144.0 * 48 * 2 * (2 * 8192 + 64 * 128) / 8;
  EXPECT_NEAR(result.memory_max / (weights + activations), 1, 1e-9);
  ClusterSetup wide = small_cluster(64);
  const StepDocuments drawn = drawn_documents(wide, Distribution::kWlbllm, 1);
  const double keep = simulate_step(wide, policy_choice("cad", 1), drawn).memory_max;
  wide.resend = true;
  const StepResult resend = simulate_step(wide, policy_choice("cad", 1), drawn);
  EXPECT_LT(resend.memory_max, keep);
}

TEST(Step, FlopsAreThoseOfTheFormula) {
  ClusterSetup setup = small_cluster(8);
  const double weights = 48.0 * (8192.0 * 128 * 144 + 3 * 8192.0 * 22016) + 32000 * 8192.0;
  // 12 tokens; 3 + 6 + 1 causal pairs twice.
  EXPECT_DOUBLE_EQ(model_flops(setup.model, {{{2, 3, 1}, {3, 2, 1}}}),
                   6 * weights * 12 + 12.0 * 64 * 128 * 48 * 20);
}

TEST(Step, ClustersThatCantBeAreRefusedInOneLine) {
  const auto error_of = [](const std::function<void(ClusterSetup&)>& change, const char* policy = "none") {
    ClusterSetup setup = small_cluster(64);
    change(setup);
    try {
      simulate_step(setup, policy_choice(policy, 1),
                    drawn_documents(small_cluster(64), Distribution::kProlong, 0));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error_of([](ClusterSetup& s) { s.tp = 3; }),
            "34b has 64 heads: a tensor-parallel degree of 3 doesn't divide them");
  EXPECT_EQ(error_of([](ClusterSetup& s) { s.gpus = 60; }),
            "60 gpus are not (data-parallel ranks × pp 1 + 0 servers) × tp 8");
  EXPECT_EQ(error_of([](ClusterSetup& s) {
              s.pp = 5;
              s.gpus = 40;
            }),
            "34b has 48 layers: 5 pipeline stages don't divide them");
  EXPECT_EQ(error_of([](ClusterSetup& s) { s.tokens += 1; }),
            "524289 tokens are not a multiple of micro_batches 1 × nano_batches 2 × context 131072");
  EXPECT_EQ(error_of([](ClusterSetup&) {}, "wlb-3"),
            "policy wlb-3: 8 data-parallel ranks are not groups of 3");
  EXPECT_EQ(error_of([](ClusterSetup& s) {
              s.tp = 1;
              s.gpus = 8;
            }),
            "34b needs 253 GB a device for weights, gradients and optimizer alone at tp 1 × pp 1: a h200 has "
            "141 GB");
  EXPECT_EQ(error_of([](ClusterSetup&) {}, "cad-4"), "policy 'cad-4': cad has no degree");
  try {
    packed_documents(small_cluster(8), {5, 131073}, 1, "lengths.txt");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "lengths.txt: document 1 has 131073 tokens: more than the context of 131072");
  }
}

TEST(Timeline, StreamsRunInOrderAndWaitForWhatTheyNeed) {
  Timeline timeline(2, true);
  const TimelineEvent compute = {0, Stream::kCompute, EventKind::kLinear, false, 0, 0, 0, 2};
  TimelineEvent exchange = {0, Stream::kExchange, EventKind::kDispatch, false, 0, 0, 0, 3};
  EXPECT_EQ(timeline.run(compute, 1), 3);
  EXPECT_EQ(timeline.run(compute, 0), 5) << "the stream is busy until 3";
  EXPECT_EQ(timeline.run(exchange, 3), 6) << "beside compute";
  EXPECT_EQ(timeline.run(compute, 6), 8);
  EXPECT_EQ(timeline.end(), 8);
  EXPECT_EQ(timeline.busy()[0], 6);
  const Json trace = parse_json(chrome_trace(timeline.events()), "trace");
  ASSERT_EQ(trace["traceEvents"].size(), 8u) << "four names, four events";
  EXPECT_EQ(trace["traceEvents"][6]["name"], "dispatch");
  EXPECT_EQ(trace["traceEvents"][6]["ts"], 3e6);
  EXPECT_EQ(parse_json(chrome_trace({}), "trace")["traceEvents"].size(), 0u);
}

TEST(Study, ReportsEveryPolicyAgainstTheFirst) {
  const ClusterSetup setup = small_cluster(32);
  std::vector<StepDocuments> draws;
  for (uint64_t seed = 0; seed < 3; ++seed)
    draws.push_back(drawn_documents(setup, Distribution::kWlbllm, seed));
  const Study study = run_study(setup, {policy_choice("none", 1), policy_choice("cad", 1)}, draws);
  ASSERT_EQ(study.rows.size(), 2u);
  EXPECT_EQ(study.rows[0].speedup, 1);
  double speedup = 0;
  for (size_t d = 0; d < 3; ++d)
    speedup += study.rows[0].draws[d].seconds / study.rows[1].draws[d].seconds / 3;
  EXPECT_DOUBLE_EQ(study.rows[1].speedup, speedup);
  const Json json = parse_json(study_json(study), "study");
  EXPECT_EQ(json["rows"][1]["policy"], "cad");
  EXPECT_EQ(json["rows"][1]["draws_s"].size(), 3u);
  EXPECT_NE(study_text(study).find("cad"), std::string::npos);
  EXPECT_NEAR(spread_of({1, 2, 3}).deviation, 1, 1e-12);
}

}  // namespace
}  // namespace distca
