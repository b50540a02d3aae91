// `distca plan`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/documents_options.h"
#include "cli/plan_numbers.h"
#include "cli/plan_output.h"
#include "model/config.h"
#include "plan/exchange.h"
#include "plan/picture.h"
#include "plan/profile.h"
#include "plan/report.h"
#include "train/indexed_dataset.h"

namespace distca {
namespace {

struct PlanCommand {
  DocumentsOptions documents;
  std::string dataset;
  int32_t ranks = 8;
  int64_t tokens = 65536, step = 0;
  std::string model = "llama-8b", policy = "cad", layout = "fixed", profile;
  std::string json, dump, picture, speeds, ci;
  bool compare = false;
  int32_t ranks_per_node = 8;
  PlanOptions options;
};

/// The documents of one step of the data set, as a run with so many tokens in one nano-batch would draw them.
Layout step_of_dataset(const PlanCommand& command) {
  const auto dataset = std::make_shared<const IndexedDataset>(command.dataset);
  BatchInputs inputs;
  inputs.tokens_per_batch = command.tokens;
  inputs.nano_batches = 1;
  inputs.context = command.tokens;
  inputs.split_documents = true;
  const TokenSource source = token_source(dataset);
  BatchStream stream(source, inputs);
  const LongDocuments split = find_long_documents(source, inputs.context);
  if (split.count > 0) {
    log_warning("{}: {} documents longer than the step's {} tokens are split into {}", source.name,
                split.count, inputs.context, split.parts);
  }
  GlobalBatch batch = stream.next();
  for (int64_t step = 0; step < command.step; ++step) batch = stream.next();
  const int64_t rows = (command.tokens + command.ranks - 1) / command.ranks;
  DISTCA_CHECK_INPUT(rows >= kTileRows,
                     "--tokens {} over {} ranks: a chunk of {} rows; at least {} are needed", command.tokens,
                     command.ranks, rows, kTileRows);
  return pack_in_order(batch.nano_batches.front().lengths(), command.ranks, rows);
}

Layout layout_of(const PlanCommand& command) {
  return command.dataset.empty() ? layout_of(command.documents) : step_of_dataset(command);
}

LayerHeads heads_of(const std::string& model) {
  const LlamaConfig config = find_llama_config(model);
  return {config.num_attention_heads, config.num_key_value_heads, config.head_dim, 2};
}

PlanOptions options_of(const PlanCommand& command, Links& links) {
  PlanOptions options = command.options;
  const LayerHeads heads = heads_of(command.model);
  options.bytes = row_bytes(heads);
  options.policy = policy_named(command.policy);
  options.speeds = parse_numbers("--speeds", command.speeds);
  options.ci = parse_numbers("--ci", command.ci);
  DISTCA_CHECK_INPUT(command.layout == "fixed" || command.layout == "free",
                     "layout '{}' is neither fixed nor free", command.layout);
  options.layout = command.layout == "free" ? LayoutKind::kFree : LayoutKind::kFixed;
  if (command.profile.empty()) return options;
  const Profile profile = Profile::read(command.profile);
  options.cost = TaskCost(profile.attention(heads, "forward"));
  for (double& seconds : options.ci) {
    DISTCA_CHECK_INPUT(seconds >= 0 && seconds < 1e6, "--ci '{}': {} is not from 0 to 1e6 seconds",
                       command.ci, seconds);
    seconds *= 1e12;
  }
  options.min_gain *= 1e12;
  links = profile.links();
  return options;
}

/// One report a policy: those that the options admit.
std::vector<PlanReport> compare(const Layout& layout, const PlanOptions& options, PlanResult& chosen) {
  std::vector<PlanReport> reports;
  for (const Policy policy : {Policy::kCad, Policy::kNone, Policy::kWlb, Policy::kCp, Policy::kCpSeq}) {
    PlanOptions one = options;
    one.policy = policy;
    PlanResult result;
    reports.push_back(plan_and_report(layout, one, result));
    if (policy == options.policy) chosen = std::move(result);
    if (policy != Policy::kCad || options.layout == LayoutKind::kFree) continue;
    one.layout = LayoutKind::kFree;
    reports.push_back(plan_and_report(layout, one, result));
  }
  return reports;
}

/// Where files go: each to a path of its own that can be written, at most one of them to standard output.
void check_outputs(const PlanCommand& command) {
  std::vector<std::pair<std::string, std::string>> taken;
  const auto take = [&](const char* option, const std::string& path) {
    if (path.empty()) return;
    const std::string place =
        path == "-" ? path : std::filesystem::absolute(path).lexically_normal().string();
    for (const auto& [other, used] : taken)
      DISTCA_CHECK_INPUT(place != used, "{} and {} are both {}: give each a path of its own", other, option,
                         path);
    taken.emplace_back(option, place);
  };
  take("--docs", command.documents.docs);
  take("--profile", command.profile);
  const std::pair<const char*, const std::string&> outputs[] = {
      {"--json", command.json}, {"--dump", command.dump}, {"--picture", command.picture}};
  for (const auto& [option, path] : outputs) {
    take(option, path);
    if (!path.empty() && path != "-") check_can_write(path);
  }
}

void write_text(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  if (path != "-") return write_file_atomically(path, text);
  std::fputs(text.c_str(), stdout);
  DISTCA_CHECK(std::fflush(stdout) == 0, "standard output can't be written");
}

void run(const PlanCommand& command) {
  check_outputs(command);
  const Layout layout = layout_of(command);
  Links links;
  const PlanOptions options = options_of(command, links);
  PlanResult result;
  std::vector<PlanReport> reports;
  if (command.compare) {
    reports = compare(layout, options, result);
  } else {
    reports.push_back(plan_and_report(layout, options, result));
  }
  std::vector<Json> entries;
  for (const PlanReport& report : reports) {
    entries.push_back(report_json(report));
    if (links.inter.bytes_per_s > 0) {
      entries.back()["exchange_s"] = exchange_seconds(report.traffic, links, command.ranks_per_node);
    }
  }
  const bool quiet = command.json == "-" || command.dump == "-" || command.picture == "-";
  if (!quiet) print_reports(layout, reports);
  write_text(command.json, (command.compare ? Json(entries) : entries.front()).dump(2) + "\n");
  if (!command.dump.empty()) write_text(command.dump, dump_plan(result.plan) + "\n");
  if (!command.picture.empty()) {
    const auto chosen = std::find_if(reports.begin(), reports.end(), [&](const PlanReport& report) {
      return report.digest == result.plan.digest();
    });
    write_text(command.picture, plan_picture(*chosen, make_exchange(result.plan), options.bytes));
  }
}

void add_batch_options(CLI::App& app, PlanCommand& command) {
  add_documents_options(app, command.documents);
  auto* dataset = app.add_option("--dataset", command.dataset,
                                 "prefix of a Megatron .bin/.idx pair: one step's documents");
  dataset->excludes("--docs")->excludes("--distribution")->excludes("--scale");
  auto* ranks = app.add_option("--ranks", command.ranks, "ranks for --dataset; --chunks says the same");
  ranks->check(whole_number(1, 1'000'000))->capture_default_str()->needs(dataset);
  auto* tokens = app.add_option("--tokens", command.tokens,
                                "tokens of a step of --dataset, over all ranks; or give --tokens-per-chunk");
  tokens->check(whole_number(1, int64_t{1} << 40))->capture_default_str()->needs(dataset);
  app.add_option("--step", command.step, "which step of --dataset")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str()
      ->needs(dataset);
  CLI::Option* drawn = app.get_option("--distribution");
  for (const auto& [name, other] : {std::pair("--chunks", ranks), std::pair("--tokens-per-chunk", tokens)}) {
    CLI::Option* option = app.get_option(name);
    option->remove_needs(drawn);
    option->excludes(other);
  }
}

/// --chunks and --tokens-per-chunk as a data set's ranks and tokens.
void take_chunks(const CLI::App& app, PlanCommand& command) {
  const bool chunks = app.count("--chunks") > 0, tokens = app.count("--tokens-per-chunk") > 0;
  DISTCA_CHECK_INPUT(
      !command.dataset.empty() || !command.documents.distribution.empty() || !(chunks || tokens),
      "{} goes with --distribution or --dataset", chunks ? "--chunks" : "--tokens-per-chunk");
  if (chunks) command.ranks = command.documents.chunks;
  if (tokens) command.tokens = command.documents.tokens_per_chunk * command.ranks;
}

void add_planning_options(CLI::App& app, PlanCommand& command) {
  PlanOptions& options = command.options;
  app.add_option("--model", command.model, "preset or config.json, for the bytes of a row")
      ->capture_default_str();
  app.add_option("--policy", command.policy, "cad, none, wlb, cp or cp-seq")->capture_default_str();
  app.add_option("--layout", command.layout, "fixed, or free: documents may change rank")
      ->capture_default_str();
  app.add_option("--tolerance", options.tolerance,
                 "how much later than the best common time a server may finish, 0 to 1")
      ->capture_default_str();
  app.add_option("--min-gain", options.min_gain,
                 "least load moved per byte: pairs, or seconds with a profile");
  app.add_option("--search", options.search_moves, "changes tried after the greedy plan; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--profile", command.profile, "measured times: loads are seconds");
  app.add_option("--speeds", command.speeds, "A,B,…: each server's speed");
  app.add_option("--ci", command.ci, "A,B,…: each server's other work, in the unit of loads");
  app.add_option("--dedicated", options.dedicated, "servers that are home to no tokens")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--cp", options.cp, "ranks of a group, for wlb, cp and cp-seq")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-kv-rows", options.kv_row_limit,
                 "K/V rows a server may hold, its own included; 0: no limit")
      ->check(whole_number(0, INT64_MAX))
      ->capture_default_str();
  app.add_option("--max-bytes", options.byte_limit,
                 "bytes a server may send, and receive, in one layer; 0: no limit")
      ->check(whole_number(0, INT64_MAX))
      ->capture_default_str();
  app.add_option("--ranks-per-node", command.ranks_per_node, "which links of a profile ranks share")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

}  // namespace

void add_plan_command(CLI::App& program) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* app =
      program.add_subcommand("plan", "plan who computes which attention of a batch, and report it");
  add_batch_options(*app, *command);
  add_planning_options(*app, *command);
  app->add_flag("--compare", command->compare, "a row for every policy");
  app->add_option("--json", command->json, "write the report; - is standard output");
  app->add_option("--dump", command->dump, "write the plan itself; - is standard output");
  app->add_option("--picture", command->picture, "draw loads and exchanges as SVG; - is standard output");
  app->callback([command, app] {
    take_chunks(*app, *command);
    const bool in_groups = command->compare || command->policy == "wlb" || command->policy == "cp" ||
                           command->policy == "cp-seq";
    DISTCA_CHECK_INPUT(app->count("--cp") == 0 || in_groups,
                       "--cp {} is for wlb, cp and cp-seq: policy '{}' has no groups", command->options.cp,
                       command->policy);
    run(*command);
  });
}

}  // namespace distca
