// The planner against the published one and the lower bound on the batches of ../shared/data, at two models,
// both layouts and all tolerances; and how planning time and memory grow with the number of servers. Every
// plan is held against an exact coverage check that shares no code with the planner.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "plan/coverage.h"
#include "plan/distribution.h"
#include "plan/exchange.h"
#include "plan/random.h"
#include "plan/report.h"

namespace distca {
namespace {

const std::string kData = DISTCA_SOURCE_DIR "/../shared/data/";

struct Reference {
  std::string distribution, model;
  int64_t chunk = 0, chunks = 0;
  double bytes = 0, busiest = 0;

  std::string batch() const { return format("{}-{}k-n{}", distribution, chunk / 1024, chunks); }
  std::string path() const { return kData + "batches/" + batch() + "-s42.json"; }
};

std::vector<Reference> read_references() {
  std::ifstream in(kData + "reference_planner.tsv");
  DISTCA_CHECK_INPUT(in.good(), "{}reference_planner.tsv can't be read: this benchmark needs the shared data",
                     kData);
  std::vector<Reference> references;
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#' || line.rfind("dist\t", 0) == 0) continue;
    std::istringstream fields(line);
    Reference row;
    double tolerance = 0, seed = 0, base = 0, most = 0, least = 0, twice = 0, qo = 0, kv = 0, in_bytes = 0,
           out_bytes = 0;
    fields >> row.distribution >> row.chunk >> row.chunks >> row.model >> tolerance >> seed >> base >> most >>
        least >> row.bytes >> twice >> qo >> kv >> in_bytes >> out_bytes;
    row.busiest = std::max(in_bytes, out_bytes);
    if (tolerance == 0.02) references.push_back(row);
  }
  return references;
}

RowBytes bytes_of(const std::string& model) {
  return row_bytes({model == "8B" ? 32 : 64, 8, 128, 2});
}

/// Rows for --json and whether what must hold does.
class Results {
 public:
  void add(const std::string& name, double value, const std::string& unit, Json baseline = nullptr,
           Json ratio = nullptr) {
    rows_.push_back(
        {{"name", name}, {"value", value}, {"unit", unit}, {"baseline", baseline}, {"ratio", ratio}});
  }

  void bar(const std::string& name, double value, double most) {
    const bool holds = value <= most;
    held_ = held_ && holds;
    std::printf("%-72s %9.4f  at most %6.3f  %s\n", name.c_str(), value, most,
                holds ? "holds" : "DOES NOT HOLD");
    add("plan/bar/" + name, value, "ratio");
  }

  bool held() const { return held_; }
  Json json() const { return {{"machine", {{"threads", 1}}}, {"rows", rows_}}; }

 private:
  Json rows_ = Json::array();
  bool held_ = true;
};

struct Spread {
  double logs = 0, worst = 0;
  int64_t count = 0;

  void add(double value) {
    logs += std::log(value);
    worst = std::max(worst, value);
    ++count;
  }
  double mean() const { return std::exp(logs / static_cast<double>(std::max<int64_t>(1, count))); }
};

PlanReport checked(const Layout& layout, const PlanOptions& options, PlanResult& result) {
  PlanReport report = plan_and_report(layout, options, result);
  const std::string fault = coverage::fault_of(result.plan);
  DISTCA_CHECK(fault.empty(), "a plan does not cover its batch: {}", fault);
  return report;
}

void bench_fixed(const std::vector<Reference>& references, int64_t moves, Results& results) {
  std::printf("fixed layout, tolerance .02\n%-22s %-4s %8s %8s %10s %10s %9s %9s %8s\n", "batch", "", "pairs",
              "padded", "GB", "÷published", "busiest÷", "÷bound", "tasks");
  Spread pairs, bytes, busiest, bound;
  for (const Reference& reference : references) {
    PlanOptions options;
    options.bytes = bytes_of(reference.model);
    if (moves >= 0) options.search_moves = moves;
    PlanResult result;
    const PlanReport report = checked(pack_documents(read_documents(reference.path())), options, result);
    const auto total = static_cast<double>(report.traffic.total());
    const auto most = static_cast<double>(std::max(report.traffic.max_send(), report.traffic.max_receive()));
    pairs.add(std::max(report.pairs_max_over_mean, report.padded_max_over_mean));
    bytes.add(total / reference.bytes);
    busiest.add(most / reference.busiest);
    bound.add(total / *report.lower_bound);
    std::printf("%-22s %-4s %8.4f %8.4f %10.3f %10.3f %9.3f %9.3f %8zu\n", reference.batch().c_str(),
                reference.model.c_str(), report.pairs_max_over_mean, report.padded_max_over_mean, total / 1e9,
                total / reference.bytes, most / reference.busiest, total / *report.lower_bound,
                result.plan.tasks.size());
    const std::string name = "plan/fixed/" + reference.batch() + "/" + reference.model;
    results.add(name + "/pairs", report.pairs_max_over_mean, "max/mean");
    results.add(name + "/padded_pairs", report.padded_max_over_mean, "max/mean");
    results.add(name + "/bytes", total, "B", "published planner", reference.bytes / total);
    results.add(name + "/busiest", most, "B", "published planner", reference.busiest / most);
    results.add(name + "/bytes_over_bound", total / *report.lower_bound, "ratio");
  }
  results.bar("fixed: max/mean pairs, raw and padded, worst", pairs.worst, 1.02);
  results.bar("fixed: bytes ÷ published, worst", bytes.worst, 0.80);
  results.bar("fixed: bytes ÷ published, geometric mean", bytes.mean(), 0.71);
  results.bar("fixed: busiest server ÷ published, worst", busiest.worst, 0.95);
  results.bar("fixed: busiest server ÷ published, geometric mean", busiest.mean(), 0.70);
  results.bar("fixed: bytes ÷ lower bound, worst", bound.worst, 1.20);
  results.bar("fixed: bytes ÷ lower bound, geometric mean", bound.mean(), 1.09);
}

/// Plans of batches that nothing was tuned on, and the least that any plan of each could end at.
class OtherBatches {
 public:
  explicit OtherBatches(int64_t moves) : moves_(moves) {
    std::printf("%-22s %-4s %6s %8s %9s %9s %9s\n", "batch", "", "seed", "GB", "÷bound", "least", "÷least");
  }

  void add(const std::string& name, int seed, const Layout& layout) {
    for (const char* const model : {"8B", "34B"}) {
      PlanOptions options;
      options.bytes = bytes_of(model);
      if (moves_ >= 0) options.search_moves = moves_;
      PlanResult result;
      const PlanReport report = checked(layout, options, result);
      const auto total = static_cast<double>(report.traffic.total());
      pairs_.add(std::max(report.pairs_max_over_mean, report.padded_max_over_mean));
      if (*report.lower_bound == 0) continue;
      bound_.add(total / *report.lower_bound);
      best_.add(total / *report.best_bound);
      above_ += total > kMost * *report.lower_bound;
      impossible_ += *report.best_bound > kMost * *report.lower_bound;
      if (total <= 1.15 * *report.lower_bound) continue;
      std::printf("%-22s %-4s %6d %8.3f %9.3f %9.3f %9.3f\n", name.c_str(), model, seed, total / 1e9,
                  total / *report.lower_bound, *report.best_bound / *report.lower_bound,
                  total / *report.best_bound);
    }
  }

  void finish(const std::string& name, Results& results) const {
    results.bar(name + ": max/mean pairs, raw and padded, worst", pairs_.worst, 1.02);
    results.bar(name + ": bytes ÷ lower bound, geometric mean", bound_.mean(), 1.09);
    results.bar(name + ": bytes ÷ the least there could be, worst", best_.worst, kMost);
    results.add("plan/" + name + "/bytes_over_bound", bound_.worst, "ratio");
    std::printf(
        "%lld of %lld above %.2f of the lower bound, the worst at %.3f; of these no plan could hold it on "
        "%lld\n",
        static_cast<long long>(above_), static_cast<long long>(bound_.count), kMost, bound_.worst,
        static_cast<long long>(impossible_));
  }

 private:
  static constexpr double kMost = 1.2;

  int64_t moves_;
  Spread pairs_, bound_, best_;
  int64_t above_ = 0, impossible_ = 0;
};

/// Batches of the field's two distributions drawn with other seeds.
void bench_seeds(int first, int seeds, int64_t moves, Results& results) {
  std::printf("\nfixed layout, tolerance .02, seeds %d to %d: batches beyond 1.15 of the lower bound\n",
              first, first + seeds - 1);
  OtherBatches batches(moves);
  for (const Distribution distribution : {Distribution::kWlbllm, Distribution::kProlong}) {
    const char* const name = distribution == Distribution::kWlbllm ? "wlbllm" : "prolong";
    for (const auto& [thousands, chunks] :
         {std::pair(128, 8), std::pair(128, 16), std::pair(128, 32), std::pair(128, 64), std::pair(128, 128),
          std::pair(512, 8), std::pair(512, 32), std::pair(512, 64)}) {
      for (int seed = first; seed < first + seeds; ++seed) {
        batches.add(format("{}-{}k-n{}", name, thousands, chunks), seed,
                    pack_documents(sample_documents(distribution, chunks, 1024 * thousands,
                                                    static_cast<uint64_t>(seed))));
      }
    }
  }
  batches.finish("seeds", results);
}

constexpr int64_t kMixtureTokens = 131072;

/// Lengths unlike the field's: all alike, all orders of magnitude alike, a power law, a few long among many
/// short, and quarters of a chunk among short ones.
struct Mixture {
  const char* name;
  int64_t (*length)(Random&);
};
constexpr Mixture kMixtures[] = {
    {"uniform", [](Random& random) { return random.between(1, kMixtureTokens); }},
    {"orders",
     [](Random& random) {
       return static_cast<int64_t>(64 * std::exp(random.unit() * std::log(kMixtureTokens / 64.0)));
     }},
    {"power",
     [](Random& random) { return static_cast<int64_t>(1024 / std::pow(1 - random.unit(), 1 / 1.1)); }},
    {"few-long",
     [](Random& random) {
       return random.between(0, 7) == 0 ? random.between(kMixtureTokens / 2, kMixtureTokens)
                                        : random.between(256, 8192);
     }},
    {"quarters",
     [](Random& random) {
       return random.between(0, 1) == 0 ? random.between(1024, 16384) : kMixtureTokens / 4;
     }},
};

/// Documents one after the other; a chunk's end cuts them.
Documents mixed_documents(const Mixture& mixture, int chunks, uint64_t seed) {
  Random random(seed);
  Documents documents{{}, kMixtureTokens};
  int64_t rest = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<int64_t>& lengths = documents.chunks.emplace_back();
    for (int64_t room = kMixtureTokens; room > 0; room -= lengths.back()) {
      if (rest == 0) rest = std::clamp<int64_t>(mixture.length(random), 1, kMixtureTokens);
      lengths.push_back(std::min(rest, room));
      rest -= lengths.back();
    }
  }
  return documents;
}

void bench_mixtures(int first, int seeds, int64_t moves, Results& results) {
  std::printf(
      "\nfixed layout, tolerance .02, other lengths, seeds %d to %d: beyond 1.15 of the lower bound\n", first,
      first + seeds - 1);
  OtherBatches batches(moves);
  for (const Mixture& mixture : kMixtures) {
    for (const int chunks : {8, 16, 32, 64}) {
      for (int seed = first; seed < first + seeds; ++seed) {
        batches.add(format("{}-{}k-n{}", mixture.name, kMixtureTokens / 1024, chunks), seed,
                    pack_documents(mixed_documents(mixture, chunks, static_cast<uint64_t>(seed))));
      }
    }
  }
  batches.finish("mixtures", results);
}

void bench_free(const std::vector<Reference>& references, Results& results) {
  std::printf("\nfree layout, tolerance .02\n%-22s %-4s %8s %8s %10s %10s %10s %8s\n", "batch", "", "pairs",
              "padded", "GB", "GB fixed", "÷fixed", "tokens±");
  std::map<std::string, std::pair<double, double>> sums;
  double worst_pairs = 0, worst_tokens = 0, worst_share = 0;
  for (const Reference& reference : references) {
    PlanOptions options;
    options.bytes = bytes_of(reference.model);
    const Layout layout = pack_documents(read_documents(reference.path()));
    PlanResult result;
    const auto fixed = static_cast<double>(checked(layout, options, result).traffic.total());
    options.layout = LayoutKind::kFree;
    const PlanReport report = checked(layout, options, result);
    const auto total = static_cast<double>(report.traffic.total());
    auto& [free_sum, fixed_sum] = sums[reference.distribution + " " + reference.model];
    free_sum += total;
    fixed_sum += fixed;
    worst_pairs = std::max({worst_pairs, report.pairs_max_over_mean, report.padded_max_over_mean});
    worst_tokens = std::max(worst_tokens, report.token_deviation);
    if (fixed > 1e9) worst_share = std::max(worst_share, total / fixed);
    std::printf("%-22s %-4s %8.4f %8.4f %10.3f %10.3f %10.3f %8.0f\n", reference.batch().c_str(),
                reference.model.c_str(), report.pairs_max_over_mean, report.padded_max_over_mean, total / 1e9,
                fixed / 1e9, total / fixed, report.token_deviation);
    results.add("plan/free/" + reference.batch() + "/" + reference.model + "/bytes", total, "B",
                "our fixed layout", total > 0 ? Json(fixed / total) : Json(nullptr));
  }
  for (const auto& [name, sum] : sums)
    results.bar("free: bytes ÷ fixed, " + name, sum.first / sum.second, 0.55);
  results.bar("free: bytes ÷ fixed, worst batch above 1 GB", worst_share, 0.65);
  results.bar("free: max/mean pairs, raw and padded, worst", worst_pairs, 1.02);
  results.bar("free: tokens from the mean, worst", worst_tokens, 128);
}

void bench_tolerances(const std::vector<Reference>& references, Results& results) {
  const std::vector<double> tolerances{0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
  std::printf("\nGB at tolerance");
  for (const double tolerance : tolerances) std::printf(" %9.3f", tolerance);
  std::printf("\n");
  double worst_padded = -1, worst_raw = -1, worst_growth = 0, worst_tiles = 0;
  for (const Reference& reference : references) {
    std::printf("%-18s %-4s", reference.batch().c_str(), reference.model.c_str());
    const Layout layout = pack_documents(read_documents(reference.path()));
    double least = INFINITY;
    for (const double tolerance : tolerances) {
      PlanOptions options;
      options.bytes = bytes_of(reference.model);
      options.tolerance = tolerance;
      PlanResult result;
      const PlanReport report = checked(layout, options, result);
      const auto total = static_cast<double>(report.traffic.total());
      std::printf(" %9.3f", total / 1e9);
      if (tolerance > 0) worst_padded = std::max(worst_padded, report.padded_max_over_mean - 1 - tolerance);
      if (tolerance >= 0.01) worst_raw = std::max(worst_raw, report.pairs_max_over_mean - 1 - tolerance);
      worst_growth = std::max(worst_growth, total / least);
      least = std::min(least, total);
      if (tolerance > 0) continue;
      std::vector<int64_t> tasks(report.loads.size(), 0);
      for (const Task& task : result.plan.tasks) ++tasks[static_cast<size_t>(task.server)];
      const double mean =
          std::accumulate(report.loads.begin(), report.loads.end(), 0.0) / static_cast<double>(tasks.size());
      for (size_t r = 0; r < tasks.size(); ++r) {
        worst_tiles = std::max(worst_tiles, (static_cast<double>(report.loads[r]) - mean) /
                                                (128.0 * 128 * static_cast<double>(tasks[r])));
      }
    }
    std::printf("\n");
  }
  results.bar("sweep: padded max/mean beyond 1 + tolerance", worst_padded, 0);
  results.bar("sweep: raw max/mean beyond 1 + tolerance, from .01 up", worst_raw, 0);
  results.bar("sweep: tiles a task beyond the mean at tolerance 0", worst_tiles, 1);
  results.bar("sweep: bytes ÷ those of any smaller tolerance", worst_growth, 1.02);
}

/// CPU seconds that std::sort takes for a million random integers.
double sort_seconds() {
  Random random(1);
  std::vector<uint64_t> values(1'000'000);
  for (uint64_t& value : values) value = random.engine()();
  const double start = thread_cpu_seconds();
  std::sort(values.begin(), values.end());
  const double seconds = thread_cpu_seconds() - start;
  DISTCA_CHECK(std::is_sorted(values.begin(), values.end()), "std::sort did not sort");
  return seconds;
}

struct Timing {
  double plan = 0, exchange = 0, ratio = INFINITY;  // seconds, and over the sort's just before and after
};

Timing best_of_pairs(const Layout& layout, const PlanOptions& options, int pairs) {
  Timing best;
  for (int i = 0; i < pairs; ++i) {
    const double before = sort_seconds(), start = thread_cpu_seconds();
    const PlanResult result = make_plan(layout, options);
    const double planned = thread_cpu_seconds();
    const Exchange exchange = make_exchange(result.plan);
    const double end = thread_cpu_seconds();
    DISTCA_CHECK(exchange.servers.size() == static_cast<size_t>(result.plan.servers),
                 "no tables for some servers");
    const double ratio = (end - start) / ((before + sort_seconds()) / 2);
    if (ratio < best.ratio) best = {planned - start, end - planned, ratio};
  }
  return best;
}

/// The chunks of a batch `times` times over, in random order.
Documents repeated(const Documents& documents, int times) {
  Documents all{{}, documents.tokens_per_chunk};
  for (int i = 0; i < times; ++i)
    all.chunks.insert(all.chunks.end(), documents.chunks.begin(), documents.chunks.end());
  Random random(8);
  for (size_t i = all.chunks.size(); i > 1; --i) std::swap(all.chunks[i - 1], all.chunks[random.below(i)]);
  return all;
}

void bench_scaling(int pairs, Results& results) {
  std::printf("\ntime on one thread ÷ std::sort of 1,000,000 random 64-bit integers, best of %d pairs\n",
              pairs);
  std::printf("%-9s %6s %9s %10s %8s %9s %10s %8s\n", "", "N", "plan ms", "exchange", "÷sort", "+search",
              "exchange", "÷sort");
  double worst[2][2] = {{0, 0}, {0, 0}};  // 512 and 4,096; without and with search
  for (const char* const distribution : {"wlbllm", "prolong"}) {
    for (const int chunks : {8, 16, 32, 64, 128, 256, 512, 4096}) {
      const Documents documents = read_documents(
          format("{}batches/{}-128k-n{}-s42.json", kData, distribution, std::min(chunks, 512)));
      const Layout layout = pack_documents(chunks > 512 ? repeated(documents, chunks / 512) : documents);
      PlanOptions options;
      Timing timings[2];
      for (const int with_search : {0, 1}) {
        options.search_moves = with_search ? PlanOptions{}.search_moves : 0;
        timings[with_search] = best_of_pairs(layout, options, pairs);
        if (chunks >= 512) {
          double& entry = worst[chunks > 512][with_search];
          entry = std::max(entry, timings[with_search].ratio);
        }
        results.add(
            format("plan/time/{}-128k-n{}/{}", distribution, chunks, with_search ? "search" : "greedy"),
            timings[with_search].plan + timings[with_search].exchange, "s", "std::sort of 1e6 integers",
            1 / timings[with_search].ratio);
      }
      std::printf("%-9s %6d %9.2f %10.2f %8.3f %9.2f %10.2f %8.3f\n", distribution, chunks,
                  timings[0].plan * 1e3, timings[0].exchange * 1e3, timings[0].ratio, timings[1].plan * 1e3,
                  timings[1].exchange * 1e3, timings[1].ratio);
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  results.bar("time: N = 512 without search ÷ sort", worst[0][0], 0.35);
  results.bar("time: N = 512 with search ÷ sort", worst[0][1], 1.0);
  results.bar("time: N = 4,096 without search ÷ sort", worst[1][0], 5);
  results.bar("time: N = 4,096 with search ÷ sort", worst[1][1], 8);
  results.bar("memory: peak MiB of this program", static_cast<double>(usage.ru_maxrss) / 1024, 300);
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  CLI::App app{"the planner against the published one, the lower bound and the clock"};
  std::string json, only;
  int64_t moves = -1;
  int pairs = 9, seeds = 6, first_seed = 1;
  app.add_option("--json", json, "write the rows; - is standard output");
  app.add_option("--only", only, "one part: fixed, seeds, mixtures, free, tolerances or scaling");
  app.add_option("--search", moves, "search moves for the fixed layout");
  app.add_option("--pairs", pairs, "timed pairs of planning and sorting");
  app.add_option("--seeds", seeds, "seeds that other batches are drawn with")->check(CLI::PositiveNumber);
  app.add_option("--first-seed", first_seed, "the first of them");
  CLI11_PARSE(app, argc, argv);
  try {
    distca::Results results;
    const auto part = [&](const char* name) { return only.empty() || only == name; };
    // First, so that the peak memory is that of planning.
    if (part("scaling")) distca::bench_scaling(pairs, results);
    const std::vector<distca::Reference> references = distca::read_references();
    if (part("fixed")) distca::bench_fixed(references, moves, results);
    if (part("seeds")) distca::bench_seeds(first_seed, seeds, moves, results);
    if (part("mixtures")) distca::bench_mixtures(first_seed, seeds, moves, results);
    if (part("free")) distca::bench_free(references, results);
    if (part("tolerances")) distca::bench_tolerances(references, results);
    if (!json.empty()) distca::write_json(results.json(), json);
    return results.held() ? 0 : 1;
  } catch (const distca::InputError& error) {
    std::fprintf(stderr, "bench_plan: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_plan: %s\n", error.what());
    return 1;
  }
}
