// How long a training step takes against the compute in it, on thread ranks with a modelled link: the
// schedule's worth, measured. Documents of one batch file, in file order, scaled; every case trains the same
// model on the same documents with the same kernels. A step's bound is the CPU time of all ranks in layers,
// kernels, loss and optimizer ÷ ranks: what it would take if all were even and exchanges cost nothing.
//
//   build/bench_step --ranks 2,4,8 --cases cad,none,wlb,cp --steps 5
//
// With --predict the simulator's seconds for the same steps stand beside those of `cad` (machine_profile.h),
// from this machine's profile of the same model:
//
//   build/bench_step --write-model model.json
//   build/distca profile --model model.json --out machine.json
//   build/bench_step --ranks 2,4,8 --cases cad,cad+single,cad+free --profile machine.json --predict
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/heap.h"
#include "base/json.h"
#include "base/median.h"
#include "comm/threads.h"
#include "plan/layout.h"
#include "sim/machine_profile.h"
#include "sim/step.h"
#include "train/epoch_order.h"
#include "train/trainer.h"

namespace distca {
namespace {

struct Options {
  std::string docs = DISTCA_SOURCE_DIR "/../shared/data/batches/wlbllm-128k-n512-s42.json";
  double scale = 1.0 / 16;
  std::vector<int32_t> ranks = {2, 4, 8};
  std::vector<std::string> cases = {"cad", "none"};
  int64_t steps = 5, rows = 8192, hidden = 128, layers = 2, heads = 8, micro_batches = 1;
  int64_t tp = 1, pp = 1, servers = 0;
  double link = 1;  // time of a chunk's K/V over the time of its CI layer; 0: links cost nothing
  double bandwidth = 0;
  double tolerance = 0.02;
  bool wall = false;
  std::string profile, json, trace, write_model;
  bool predict = false;
  std::vector<double> speeds;
};

/// Documents of the file as a data set that the first epoch of this seed goes through in the file's order.
/// Tokens are drawn from their place.
TokenSource source_of(const Options& options, int64_t seed) {
  const Documents documents = read_documents(options.docs, options.scale);
  std::vector<int64_t> in_order;
  for (const std::vector<int64_t>& chunk : documents.chunks)
    for (const int64_t length : chunk)
      if (length > 0) in_order.push_back(length);
  const EpochOrder order(static_cast<int64_t>(in_order.size()), static_cast<uint64_t>(seed), 0);
  auto lengths = std::make_shared<std::vector<int64_t>>(in_order.size());
  for (size_t i = 0; i < in_order.size(); ++i)
    (*lengths)[static_cast<size_t>(order[static_cast<int64_t>(i)])] = in_order[i];
  TokenSource source;
  source.name = options.docs;
  source.documents = static_cast<int64_t>(lengths->size());
  source.length = [lengths](int64_t doc) { return (*lengths)[static_cast<size_t>(doc)]; };
  source.read = [](int64_t doc, Span tokens, int64_t* out) {
    for (int64_t i = tokens.begin; i < tokens.end; ++i) *out++ = (doc * 7919 + i * 31) % 251;
  };
  return source;
}

RunInputs inputs_of(const Options& options, const std::string& name, int32_t ranks, const LinkOptions& link) {
  RunInputs inputs;
  LlamaConfig& model = inputs.model;
  model.vocab_size = 256, model.hidden_size = options.hidden,
  model.intermediate_size = options.hidden * 7 / 2;
  model.num_hidden_layers = options.layers, model.num_attention_heads = options.heads;
  model.num_key_value_heads = std::max<int64_t>(options.tp, options.heads / 4);
  model.head_dim = 64;
  Config& config = inputs.config;
  const RankGrid grid = make_grid(ranks, options.pp, options.tp, options.servers);
  config.train.micro_batches = options.micro_batches;
  config.train.tokens_per_batch = options.micro_batches * config.train.nano_batches * options.rows * grid.dp;
  config.train.steps = options.steps;
  config.data.split_documents = true;
  config.data.context = options.rows;
  config.attention.tolerance = options.tolerance;
  config.parallel.tp = options.tp, config.parallel.pp = options.pp, config.parallel.servers = options.servers;
  config.link.latency = link.latency, config.link.bandwidth = link.bandwidth;
  // "cad", "none", "cp4", "wlb2", each with "+single" or "+signal", "+free", "+keep", "+resend", "+1f1b",
  // "+profile",
  // "+measured".
  std::istringstream parts(name);
  std::string part;
  std::getline(parts, part, '+');
  const size_t digits = part.find_first_of("0123456789");
  config.attention.policy = part.substr(0, digits);
  if (digits != std::string::npos) config.parallel.cp = std::stoll(part.substr(digits));
  while (std::getline(parts, part, '+')) {
    if (part == "single" || part == "signal") config.attention.overlap = part;
    if (part == "free") config.attention.layout = part;
    if (part == "keep" || part == "resend") config.attention.memory = part;
    if (part == "1f1b") config.parallel.schedule = part;
    if (part == "measured") config.parallel.speeds.measured = true;
    if (part == "profile") config.attention.profile = options.profile;
  }
  inputs.source = source_of(options, config.train.seed);
  return inputs;
}

struct Result {
  double step_s = 0, bound_s = 0, ratio = 0, wait_s = 0, load = 0, plan_ms = 0, pack_s = 0, reduce_s = 0;
  double bubble = 0, predicted = 0;                     // over measured
  double attention = 0, attention_max = 1, ci_max = 1;  // share of compute; of the slowest rank over the mean
  PlanningSums planning;
};

/// Time that the machine gave to others while this one had work, as a share of all its cores' time since the
/// beginning of its counters; none where they can't be read.
struct StolenTime {
  double stolen = 0, all = 0;

  static StolenTime now() {
    StolenTime out;
    std::ifstream stat("/proc/stat");
    std::string name;
    stat >> name;
    double ticks = 0;
    for (int i = 0; i < 8 && stat >> ticks; ++i) {  // the eighth is "steal"
      out.all += ticks;
      out.stolen = ticks;
    }
    return out;
  }
  double share_since(const StolenTime& before) const {
    return all > before.all ? (stolen - before.stolen) / (all - before.all) : 0;
  }
};

/// Of a step: every rank's seconds by kind.
double max_over_mean(const std::vector<WorkSeconds>& ranks, WorkKind kind) {
  double sum = 0, most = 0;
  for (const WorkSeconds& rank : ranks) {
    sum += rank[static_cast<size_t>(kind)];
    most = std::max(most, rank[static_cast<size_t>(kind)]);
  }
  return sum > 0 ? most * static_cast<double>(ranks.size()) / sum : 1;
}

/// What the simulator says of the steps after the first.
std::vector<double> predicted_seconds(const Options& options, const RunInputs& inputs, int32_t ranks,
                                      const LinkOptions& link) {
  const LlamaConfig& model = inputs.model;
  const Config& config = inputs.config;
  ClusterSetup setup;
  setup.model = {"bench",
                 model.hidden_size,
                 model.num_hidden_layers,
                 model.num_attention_heads,
                 model.num_key_value_heads,
                 model.head_dim,
                 model.intermediate_size,
                 model.vocab_size,
                 model.tie_word_embeddings};
  setup.profile = machine_profile(Profile::read(options.profile), setup.model, setup.model.layer_parameters(),
                                  options.rows);
  const double free = 1e15;  // bytes per second
  setup.profile.intra = {link.latency, link.bandwidth > 0 ? link.bandwidth : free};
  setup.profile.inter = setup.profile.intra;
  setup.profile.fit.gather_bytes_per_second = setup.profile.intra.bytes_per_second;
  setup.gpus = setup.gpus_per_node = ranks;
  setup.tp = 1, setup.pp = options.pp, setup.servers = options.servers;
  setup.context = options.rows;
  setup.tokens = config.train.tokens_per_batch;
  setup.micro_batches = config.train.micro_batches, setup.nano_batches = config.train.nano_batches;
  setup.tolerance = config.attention.tolerance;
  setup.resend = !config.keeps_on_server();
  setup.overlap = config.attention.overlap == "single" ? Overlap::kSingle : Overlap::kPingPong;
  setup.recompute = Recompute::kNone;
  PolicyChoice choice;
  choice.layout = config.attention.layout == "free" ? LayoutKind::kFree : LayoutKind::kFixed;
  BatchStream stream(inputs.source, batch_inputs(config));
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.steps; ++i) {
    StepDocuments documents;
    for (const NanoBatch& nano_batch : stream.next().nano_batches) {
      if (documents.empty() || static_cast<int64_t>(documents.back().size()) == setup.nano_batches)
        documents.emplace_back();
      documents.back().push_back(nano_batch.lengths());
    }
    const double step_s = simulate_step(setup, choice, documents).seconds;
    if (i > 0) seconds.push_back(step_s);
  }
  return seconds;
}

Result run(const Options& options, const std::string& name, int32_t ranks, const LinkOptions& link) {
  const RunInputs inputs = inputs_of(options, name, ranks, link);
  check_parallel(inputs, ranks);
  std::vector<StepMetrics> steps;
  std::vector<std::vector<WorkSeconds>> seconds(static_cast<size_t>(options.steps));  // by step and rank
  for (auto& step : seconds) step.resize(static_cast<size_t>(ranks));
  double bubble = 0;
  FabricOptions fabric_options;
  fabric_options.timeout_s = 600;
  fabric_options.link = link;
  run_thread_ranks(ranks, fabric_options, options.speeds, [&](Fabric& fabric) {
    Trainer trainer(fabric, inputs);
    trainer.spans.start(/*keep_spans=*/false);
    WorkSeconds before = {};
    for (int64_t i = 0; i < options.steps; ++i) {
      if (!options.trace.empty() && i + 1 == options.steps) trainer.spans.start();
      const StepMetrics metrics = trainer.step();
      const WorkSeconds now = trainer.spans.seconds();
      WorkSeconds& own = seconds[static_cast<size_t>(i)][static_cast<size_t>(fabric.rank())];
      for (size_t kind = 0; kind < now.size(); ++kind) own[kind] = now[kind] - before[kind];
      before = now;
      if (fabric.rank() == 0) steps.push_back(metrics);
    }
    const auto breakdown = gather_breakdown(fabric, {trainer.spans.seconds(), trainer.steps_s});
    if (fabric.rank() == 0) bubble = bubble_of(breakdown);
    if (!options.trace.empty()) {
      const std::string file = format("{}{}-r{}.json", options.trace, name, ranks);
      write_trace(fabric, fabric.rank(), trainer.spans.spans(), file, "");
    }
  });
  std::vector<double> step_s, ratios, bounds, waits, loads, plans, packs, reduces, attention, attention_max,
      ci_max;
  PlanningSums planning;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    const StepMetrics& step = steps[i];
    bounds.push_back(step.compute_s);
    step_s.push_back(step.step_s);
    ratios.push_back(step.step_s / bounds.back());
    waits.push_back(step.wait_s);
    loads.push_back(step.load_max_over_mean);
    packs.push_back(step.pack_s);
    reduces.push_back(step.reduce_s);
    plans.push_back(step.plan_ms);
    planning.add(step);
    double own = 0;
    for (const WorkSeconds& rank : seconds[i]) own += rank[static_cast<size_t>(WorkKind::kAttention)];
    attention.push_back(own / static_cast<double>(ranks) / step.compute_s);
    attention_max.push_back(max_over_mean(seconds[i], WorkKind::kAttention));
    ci_max.push_back(max_over_mean(seconds[i], WorkKind::kCi));
  }
  double predicted = 0;
  if (options.predict && inputs.config.attention.policy == "cad") {
    std::vector<double> over_measured = predicted_seconds(options, inputs, ranks, link);
    for (size_t i = 0; i < over_measured.size(); ++i) over_measured[i] /= step_s[i];
    predicted = median(over_measured);
  }
  return {median(step_s),    median(bounds),        median(ratios),  median(waits), median(loads),
          median(plans),     median(packs),         median(reduces), bubble,        predicted,
          median(attention), median(attention_max), median(ci_max),  planning};
}

/// For `distca profile`.
void write_model(const Options& options) {
  const RunInputs inputs = inputs_of(options, "none", static_cast<int32_t>(options.pp * options.tp), {});
  write_file_atomically(options.write_model, dump_llama_config(inputs.model, "float32"));
}

/// Seconds of one layer's context-independent work on a chunk, forward, on this machine.
double layer_seconds(const Options& options) {
  const RunInputs inputs = inputs_of(options, "none", static_cast<int32_t>(options.pp * options.tp), {});
  const LlamaParameters model = make_llama(inputs.model, {0, 1, false, false}, at::kFloat);
  NanoBatchRows rows;
  rows.rows = options.rows;
  rows.rope = make_rope(inputs.model, at::zeros({options.rows}, at::kLong), at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({options.rows, options.hidden});
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const double begin = thread_cpu_seconds();
    const Qkv qkv = pre_attention(model, 0, x, rows.rope);
    post_attention(model, 0, x, qkv.q);
    times.push_back(thread_cpu_seconds() - begin);
  }
  return median(times);
}

void report(const Options& options) {
  at::set_num_threads(1);
  LinkOptions link;
  link.clock = options.wall ? LinkOptions::Clock::kWall : LinkOptions::Clock::kVirtual;
  const double ci_s = layer_seconds(options);
  const RunInputs some = inputs_of(options, "none", static_cast<int32_t>(options.pp * options.tp), {});
  const double kv_bytes =
      4.0 * 2 * 64 * static_cast<double>(some.model.num_key_value_heads) * static_cast<double>(options.rows);
  if (options.link > 0) link.bandwidth = kv_bytes / (ci_s * options.link);
  if (options.bandwidth > 0) link.bandwidth = options.bandwidth;
  std::printf("CI of a layer %.1f ms a chunk; K/V of a chunk %.2f MB; link %.1f MB/s\n", ci_s * 1e3,
              kv_bytes / 1e6, link.bandwidth / 1e6);
  std::printf("%-24s %5s %9s %9s %7s %9s %9s %9s %9s %9s %8s %7s %7s %6s %6s %6s %6s %9s\n", "case", "ranks",
              "step s", "bound s", "ratio", "vs first", "pack s", "wait s", "reduce s", "max/mean", "plan ms",
              "bubble", "idle", "held", "att", "att mx", "ci mx", options.predict ? "predicted" : "");
  Json rows = Json::array();
  for (const int32_t ranks : options.ranks) {
    double first = 0;
    for (const std::string& name : options.cases) {
      const StolenTime before = StolenTime::now();
      const Result result = run(options, name, ranks, link);
      if (first == 0) first = result.step_s;
      std::printf(
          "%-24s %5d %9.3f %9.3f %7.3f %9.3f %9.3f %9.3f %9.3f %9.3f %8.1f %6.1f%% %6.1f%% %6.2f %6.3f %6.3f "
          "%6.3f",
          name.c_str(), ranks, result.step_s, result.bound_s, result.ratio, result.step_s / first,
          result.pack_s, result.wait_s, result.reduce_s, result.load, result.plan_ms, 100 * result.bubble,
          result.planning.idle_share > 0 ? 100 * result.planning.idle_load / result.planning.idle_share : 100,
          result.planning.held_rows_max_over_mean, result.attention, result.attention_max, result.ci_max);
      if (result.predicted > 0) std::printf(" %9.3f", result.predicted);
      if (options.wall)
        std::printf("  %.1f%% of the machine's time stolen", 100 * StolenTime::now().share_since(before));
      std::printf("\n");
      std::fflush(stdout);
      rows.push_back({{"name", format("step/{}/r{}", name, ranks)},
                      {"value", result.step_s},
                      {"unit", "s"},
                      {"baseline", "compute / ranks"},
                      {"ratio", 1 / result.ratio}});
    }
  }
  if (!options.json.empty()) write_json(Json{{"rows", rows}}, options.json);
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  distca::keep_freed_memory();
  CLI::App app("steps of a small model on thread ranks with a modelled link");
  distca::Options options;
  app.add_option("--docs", options.docs, "document lengths");
  app.add_option("--scale", options.scale, "of the lengths");
  app.add_option("--ranks", options.ranks)->delimiter(',');
  app.add_option("--cases", options.cases,
                 "POLICY[CP][+single][+free][+keep][+resend][+1f1b][+profile][+measured]")
      ->delimiter(',');
  app.add_option("--steps", options.steps);
  app.add_option("--rows", options.rows, "of a chunk");
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--heads", options.heads);
  app.add_option("--micro-batches", options.micro_batches);
  app.add_option("--tp", options.tp);
  app.add_option("--pp", options.pp);
  app.add_option("--servers", options.servers);
  app.add_option("--link", options.link, "a chunk's K/V transfer over its CI layer; 0: free links");
  app.add_option("--bandwidth", options.bandwidth, "bytes/s instead");
  app.add_option("--tolerance", options.tolerance, "of planned loads")->capture_default_str();
  app.add_flag("--wall", options.wall, "wall clock instead of the virtual one");
  app.add_option("--profile", options.profile, "of `distca profile`: cases with +profile plan by it");
  app.add_option("--speeds", options.speeds, "of ranks' clocks")->delimiter(',');
  app.add_option("--json", options.json);
  app.add_option("--trace", options.trace, "write each case's last step to PREFIX + CASE-rN.json");
  app.add_flag("--predict", options.predict,
               "print the simulator's seconds over the measured ones; needs --profile");
  app.add_option("--write-model", options.write_model,
                 "write the model's config.json, for `distca profile`, and end");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!options.write_model.empty()) {
      distca::write_model(options);
      return 0;
    }
    distca::report(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
