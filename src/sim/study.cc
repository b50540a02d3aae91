#include "sim/study.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "base/json.h"
#include "sim/recorded_documents.h"

namespace distca {
namespace {

StepDocuments split_into_parts(const ClusterSetup& setup,
                               const std::function<std::vector<int64_t>()>& next_part) {
  StepDocuments documents;
  for (int64_t m = 0; m < setup.micro_batches; ++m) {
    auto& micro = documents.emplace_back();
    for (int64_t n = 0; n < setup.nano_batches; ++n) micro.push_back(next_part());
  }
  return documents;
}

int64_t chunks_of_part(const ClusterSetup& setup) {
  return setup.tokens / (setup.micro_batches * setup.nano_batches * setup.context);
}

std::vector<StepDocuments> packed_steps(const ClusterSetup& setup, const std::vector<int64_t>& documents,
                                        int64_t steps) {
  ChunkPacker packer(documents, setup.context);
  std::vector<StepDocuments> result;
  for (int64_t step = 0; step < steps; ++step) {
    result.push_back(split_into_parts(setup, [&] { return packer.next(chunks_of_part(setup)); }));
  }
  return result;
}

struct Figure {
  const char* name;
  double (*value)(const StepResult&);
};

constexpr Figure kFigures[] = {
    {"compute_max_over_mean", [](const StepResult& r) { return r.compute_max_over_mean; }},
    {"tokens_max_over_mean", [](const StepResult& r) { return r.tokens_max_over_mean; }},
    {"idle_share", [](const StepResult& r) { return r.idle_share(); }},
    {"imbalance_share", [](const StepResult& r) { return r.imbalance_share(); }},
    {"exposed_share", [](const StepResult& r) { return r.exposed_share(); }},
    {"exchanged_bytes", [](const StepResult& r) { return r.exchanged_bytes; }},
    {"memory_max_bytes", [](const StepResult& r) { return r.memory_max; }},
    {"memory_mean_bytes", [](const StepResult& r) { return r.memory_mean; }},
    {"plan_s", [](const StepResult& r) { return r.plan_seconds; }},
};

Json setup_json(const ClusterSetup& s) {
  return {{"model", s.model.name},
          {"profile", s.profile.name},
          {"gpus", s.gpus},
          {"tp", s.tp},
          {"pp", s.pp},
          {"servers", s.servers},
          {"tokens", s.tokens},
          {"context", s.context},
          {"micro_batches", s.micro_batches},
          {"nano_batches", s.nano_batches},
          {"tolerance", s.tolerance},
          {"memory", s.resend ? "resend" : "keep"},
          {"recompute", s.recompute == Recompute::kSelective ? "selective" : "none"}};
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / count;
  for (const double value : values) spread.deviation += (value - spread.mean) * (value - spread.mean);
  spread.deviation = values.size() > 1 ? std::sqrt(spread.deviation / (count - 1)) : 0;
  return spread;
}

double StudyRow::mean(const std::function<double(const StepResult&)>& figure) const {
  double sum = 0;
  for (const StepResult& draw : draws) sum += figure(draw);
  return sum / static_cast<double>(draws.size());
}

double Study::flops_utilization(double seconds) const {
  return flops / (seconds * static_cast<double>(setup.gpus) * setup.profile.peak_flops);
}

Study run_study(const ClusterSetup& setup, const std::vector<PolicyChoice>& choices,
                const std::vector<StepDocuments>& draws, const StudyProgress& progress) {
  check_cluster(setup);
  for (const PolicyChoice& choice : choices) check_policy(setup, choice);
  Study study;
  study.setup = setup;
  const auto count = static_cast<double>(draws.size());
  for (const StepDocuments& documents : draws) {
    study.flops += model_flops(setup.model, documents) / count;
    study.balanced += balanced_seconds(setup, documents) / count;
  }
  const auto all = static_cast<int64_t>(choices.size() * draws.size());
  int64_t done = 0;
  for (const PolicyChoice& choice : choices) {
    StudyRow& row = study.rows.emplace_back();
    row.choice = choice;
    std::vector<double> seconds;
    double speedups = 0;
    for (size_t d = 0; d < draws.size(); ++d) {
      row.draws.push_back(simulate_step(setup, choice, draws[d]));
      const StepResult& result = row.draws.back();
      seconds.push_back(result.seconds);
      speedups += study.rows[0].draws[d].seconds / result.seconds;
      row.fits = row.fits && result.memory_max <= setup.memory_bytes();
      if (progress) progress(++done, all);
    }
    row.seconds = spread_of(seconds);
    row.speedup = speedups / count;
  }
  return study;
}

std::string study_text(const Study& study) {
  const ClusterSetup& s = study.setup;
  std::string text = fmt::format(
      "{} on {} {}: tp {}, pp {}, {} data-parallel ranks{}; {} tokens a step in chunks of {}, {} x {} "
      "nano-batches\n\n",
      s.model.name, s.gpus, s.profile.name, s.tp, s.pp, s.ranks(),
      s.servers > 0 ? fmt::format(" and {} servers", s.servers) : "", s.tokens, s.context, s.micro_batches,
      s.nano_batches);
  text += fmt::format("{:10} {:>8} {:>7} {:>10} {:>6} {:>8} {:>8} {:>7} {:>6} {:>9} {:>8} {:>11}\n", "policy",
                      "step s", "±", "tokens/s", "MFU", "speed-up", "compute", "tokens", "idle", "imbalance",
                      "exposed", "memory GB");
  const auto line = [&](const std::string& name, double seconds, const std::string& rest) {
    text += fmt::format("{:10} {:>8.3f} {}", name, seconds, rest);
  };
  for (const StudyRow& row : study.rows) {
    const auto mean = [&](size_t figure) { return row.mean(kFigures[figure].value); };
    line(row.choice.name(), row.seconds.mean,
         fmt::format("{:>7.3f} {:>10.0f} {:>5.1f}% {:>8.3f} {:>8.2f} {:>7.2f} {:>5.1f}% {:>8.1f}% {:>7.1f}% "
                     "{:>5.0f}/{:<5.0f}{}\n",
                     row.seconds.deviation, static_cast<double>(s.tokens) / row.seconds.mean,
                     100 * study.flops_utilization(row.seconds.mean), row.speedup, mean(0), mean(1),
                     100 * mean(2), 100 * mean(3), 100 * mean(4), mean(6) / 1e9, mean(7) / 1e9,
                     row.fits ? "" : " doesn't fit"));
  }
  line("bound", study.balanced,
       fmt::format("{:>7} {:>10.0f} {:>5.1f}%\n", "", static_cast<double>(s.tokens) / study.balanced,
                   100 * study.flops_utilization(study.balanced)));
  text +=
      "\ncompute, tokens: busiest rank ÷ mean. idle: a rank's time without compute. Of the step, imbalance "
      "(and a "
      "pipeline's\nbubble) is what exceeds the bound if exchanges took no time, exposed what exchanges and "
      "gathers add. "
      "memory: largest\nand mean of a device. MFU: 6 flops a weight and token and 12 · heads · head_dim · "
      "layers a "
      "causal pair, over\nseconds · gpus · peak.\n";
  return text;
}

std::string study_json(const Study& study) {
  Json rows = Json::array();
  for (const StudyRow& row : study.rows) {
    Json json = {{"policy", row.choice.name()},
                 {"iteration_s", row.seconds.mean},
                 {"spread_s", row.seconds.deviation},
                 {"tokens_per_s", static_cast<double>(study.setup.tokens) / row.seconds.mean},
                 {"mfu", study.flops_utilization(row.seconds.mean)},
                 {"speedup", row.speedup},
                 {"fits", row.fits}};
    for (const Figure& figure : kFigures) json[figure.name] = row.mean(figure.value);
    Json draws = Json::array();
    for (const StepResult& draw : row.draws) draws.push_back(draw.seconds);
    json["draws_s"] = std::move(draws);
    rows.push_back(std::move(json));
  }
  const Json json = {
      {"setup", setup_json(study.setup)}, {"rows", std::move(rows)}, {"balanced_s", study.balanced}};
  return json.dump();
}

StepDocuments drawn_documents(const ClusterSetup& setup, Distribution distribution, uint64_t seed) {
  const int64_t parts = setup.micro_batches * setup.nano_batches, chunks = chunks_of_part(setup);
  const Documents drawn =
      sample_documents(distribution, static_cast<int32_t>(parts * chunks), setup.context, seed);
  size_t chunk = 0;
  return split_into_parts(setup, [&] {
    std::vector<int64_t> part;
    for (int64_t i = 0; i < chunks; ++i, ++chunk) {
      part.insert(part.end(), drawn.chunks[chunk].begin(), drawn.chunks[chunk].end());
    }
    return part;
  });
}

std::vector<StepDocuments> recorded_steps(const ClusterSetup& setup, Distribution distribution, int64_t steps,
                                          uint64_t seed) {
  return packed_steps(setup, recorded_documents(distribution, setup.context, seed), steps);
}

std::vector<StepDocuments> packed_documents(const ClusterSetup& setup, const std::vector<int64_t>& lengths,
                                            int64_t steps, const std::string& origin) {
  std::vector<int64_t> documents;
  for (size_t i = 0; i < lengths.size(); ++i) {
    DISTCA_CHECK_INPUT(lengths[i] >= 0, "{}: document {} has {} tokens", origin, i, lengths[i]);
    DISTCA_CHECK_INPUT(lengths[i] <= setup.context,
                       "{}: document {} has {} tokens: more than the context of {}", origin, i, lengths[i],
                       setup.context);
    if (lengths[i] > 0) documents.push_back(lengths[i]);
  }
  DISTCA_CHECK_INPUT(!documents.empty(), "{}: there are no documents", origin);
  return packed_steps(setup, documents, steps);
}

}  // namespace distca
