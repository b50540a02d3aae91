#include "sim/tune.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

TuneCandidate evaluate(const ClusterSetup& setup, const PolicyChoice& choice,
                       const std::vector<StepDocuments>& draws, StepResult* first = nullptr) {
  TuneCandidate candidate{setup, choice};
  for (size_t d = 0; d < draws.size(); ++d) {
    const StepResult result = simulate_step(setup, choice, draws[d]);
    candidate.seconds += result.seconds / static_cast<double>(draws.size());
    candidate.memory = std::max(candidate.memory, result.memory_max);
    if (d == 0 && first != nullptr) *first = result;
  }
  candidate.fits = candidate.memory <= setup.memory_bytes();
  return candidate;
}

/// What fits first, then what is faster.
bool better(const TuneCandidate& a, const TuneCandidate& b) {
  return a.fits != b.fits ? a.fits : a.seconds < b.seconds;
}

bool can_be(const ClusterSetup& setup) {
  try {
    check_cluster(setup);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// The set-ups to try: a pipeline gets at least four micro-batches a stage where the tokens suffice, else
/// two.
std::vector<ClusterSetup> setups(const ClusterSetup& base) {
  std::vector<ClusterSetup> result;
  for (int64_t tp = 1; tp <= base.gpus_per_node; tp *= 2) {
    for (int64_t pp = 1; pp <= 8; pp *= 2) {
      ClusterSetup setup = base;
      setup.tp = tp;
      setup.pp = pp;
      for (const int64_t micros : {4 * pp, 2 * pp}) {
        setup.micro_batches = pp == 1 ? base.micro_batches : micros;
        if (!can_be(setup)) continue;
        result.push_back(setup);
        break;
      }
    }
  }
  return result;
}

TuneCandidate best_wlb(const ClusterSetup& setup, const std::vector<StepDocuments>& draws) {
  TuneCandidate best;
  for (int64_t cp = 1; cp <= 32 && setup.ranks() % cp == 0; cp *= 2) {
    const TuneCandidate candidate = evaluate(setup, {Policy::kWlb, LayoutKind::kFixed, cp}, draws);
    if (cp == 1 || better(candidate, best)) best = candidate;
  }
  return best;
}

TuneCandidate best_cad(const ClusterSetup& setup, const std::vector<StepDocuments>& draws) {
  TuneCandidate candidate = evaluate(setup, {}, draws);
  if (candidate.fits || setup.resend) return candidate;
  ClusterSetup resend = setup;
  resend.resend = true;
  const TuneCandidate smaller = evaluate(resend, {}, draws);
  return better(smaller, candidate) ? smaller : candidate;
}

/// One setting of the best candidate changed at a time.
std::vector<TuneCandidate> variations_of(const TuneCandidate& best, const DrawDocuments& documents) {
  std::vector<TuneCandidate> result;
  const auto add = [&](const ClusterSetup& setup, const PolicyChoice& choice) {
    if (can_be(setup)) result.push_back(evaluate(setup, choice, documents(setup)));
  };
  for (const double tolerance : {0.02, 0.05, 0.1, 0.15}) {
    ClusterSetup setup = best.setup;
    if (setup.tolerance == tolerance) continue;
    setup.tolerance = tolerance;
    add(setup, best.choice);
  }
  ClusterSetup memory = best.setup, nano = best.setup;
  memory.resend = !memory.resend;
  add(memory, best.choice);
  nano.nano_batches = nano.nano_batches == 2 ? 1 : 2;
  add(nano, best.choice);
  add(best.setup, {Policy::kCad, LayoutKind::kFree, 1});
  return result;
}

std::string line_of(const TuneCandidate& candidate, double best_seconds) {
  return fmt::format("  {:58} {:>8.3f} s {:>+6.1f}%  {:>4.0f} GB{}\n", candidate.name(), candidate.seconds,
                     100 * (candidate.seconds / best_seconds - 1), candidate.memory / 1e9,
                     candidate.fits ? "" : "  doesn't fit");
}

Json candidate_json(const TuneCandidate& candidate) {
  const ClusterSetup& s = candidate.setup;
  return {{"policy", candidate.choice.name()},
          {"tp", s.tp},
          {"pp", s.pp},
          {"micro_batches", s.micro_batches},
          {"nano_batches", s.nano_batches},
          {"tolerance", s.tolerance},
          {"memory", s.resend ? "resend" : "keep"},
          {"iteration_s", candidate.seconds},
          {"memory_max_bytes", candidate.memory},
          {"fits", candidate.fits}};
}

}  // namespace

std::string TuneCandidate::name() const {
  std::string text =
      fmt::format("{} tp {} pp {} micro-batches {}", choice.name(), setup.tp, setup.pp, setup.micro_batches);
  if (choice.policy != Policy::kCad) return text;
  return text + fmt::format(" nano {} tolerance {} {}", setup.nano_batches, setup.tolerance,
                            setup.resend ? "resend" : "keep");
}

Tuning tune(const ClusterSetup& base, const DrawDocuments& documents, const StudyProgress& progress) {
  Tuning tuning;
  const std::vector<ClusterSetup> tried = setups(base);
  const auto all = static_cast<int64_t>(tried.size());
  for (int64_t i = 0; i < all; ++i) {
    const std::vector<StepDocuments> draws = documents(tried[static_cast<size_t>(i)]);
    tuning.baselines.push_back(best_wlb(tried[static_cast<size_t>(i)], draws));
    tuning.cad.push_back(best_cad(tried[static_cast<size_t>(i)], draws));
    if (progress) progress(i + 1, all);
  }
  for (auto* candidates : {&tuning.baselines, &tuning.cad}) {
    std::sort(candidates->begin(), candidates->end(), better);
    DISTCA_CHECK_INPUT(
        !candidates->empty() && candidates->front().fits,
        "{} doesn't fit on {} {} with any tensor-parallel degree of a node and up to 8 stages: "
        "more gpus, fewer tokens a step, or recompute selective",
        base.model.name, base.gpus, base.profile.name);
  }
  tuning.best_baseline = tuning.baselines.front();
  tuning.best = tuning.cad.front();
  tuning.variations = variations_of(tuning.best, documents);
  for (const TuneCandidate& variation : tuning.variations) {
    if (variation.seconds < 0.995 * tuning.best.seconds && better(variation, tuning.best))
      tuning.best = variation;
  }
  evaluate(tuning.best_baseline.setup, tuning.best_baseline.choice, documents(tuning.best_baseline.setup),
           &tuning.baseline_step);
  evaluate(tuning.best.setup, tuning.best.choice, documents(tuning.best.setup), &tuning.step);
  return tuning;
}

std::string tuning_text(const Tuning& tuning) {
  const TuneCandidate &best = tuning.best, &base = tuning.best_baseline;
  const ClusterSetup& s = best.setup;
  const double speedup = base.seconds / best.seconds;
  std::string text = fmt::format("{} on {} {}, {} tokens a step in chunks of {}\n\n", s.model.name, s.gpus,
                                 s.profile.name, s.tokens, s.context);
  text += fmt::format(
      "Should you disaggregate? {}: {:.3f} s a step instead of {:.3f} s, {:.2f} times as fast as the best "
      "baseline.\n",
      speedup >= 1.02 ? "Yes"
      : speedup > 1   ? "It hardly matters"
                      : "No",
      best.seconds, base.seconds, speedup);
  text += fmt::format(
      "  baseline  {}: {:.1f}% of its step is imbalance and bubbles, {:.1f}% exposed communication\n",
      base.name(), 100 * tuning.baseline_step.imbalance_share(), 100 * tuning.baseline_step.exposed_share());
  text += fmt::format("  best      {}: {:.1f}% and {:.1f}%\n\n", best.name(),
                      100 * tuning.step.imbalance_share(), 100 * tuning.step.exposed_share());
  text += fmt::format(
      "[train]\nmicro_batches = {}\nnano_batches = {}\n[attention]\npolicy = \"cad\"\nlayout = \"{}\"\n"
      "tolerance = {}\nmemory = \"{}\"\n[parallel]\ntp = {}\npp = {}\n\n",
      s.micro_batches, s.nano_batches, best.choice.layout == LayoutKind::kFree ? "free" : "fixed",
      s.tolerance, s.resend ? "resend" : "keep", s.tp, s.pp);
  text += "Degrees, disaggregated:\n";
  for (const TuneCandidate& candidate : tuning.cad) text += line_of(candidate, best.seconds);
  text += "One setting changed:\n";
  for (const TuneCandidate& candidate : tuning.variations) text += line_of(candidate, best.seconds);
  text += "Degrees, WLB-LLM at its best degree of context parallelism:\n";
  for (const TuneCandidate& candidate : tuning.baselines) text += line_of(candidate, best.seconds);
  return text;
}

std::string tuning_json(const Tuning& tuning) {
  Json json = {{"best", candidate_json(tuning.best)},
               {"best_baseline", candidate_json(tuning.best_baseline)},
               {"speedup", tuning.best_baseline.seconds / tuning.best.seconds}};
  const auto list = [&](const char* name, const std::vector<TuneCandidate>& candidates) {
    json[name] = Json::array();
    for (const TuneCandidate& candidate : candidates) json[name].push_back(candidate_json(candidate));
  };
  list("cad", tuning.cad);
  list("variations", tuning.variations);
  list("baselines", tuning.baselines);
  return json.dump();
}

}  // namespace distca
