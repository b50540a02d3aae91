// `distca plan`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/documents_options.h"
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
  std::string json, dump, picture;
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
  BatchStream stream(token_source(dataset), inputs);
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
  DISTCA_CHECK_INPUT(command.layout == "fixed" || command.layout == "free",
                     "layout '{}' is neither fixed nor free", command.layout);
  options.layout = command.layout == "free" ? LayoutKind::kFree : LayoutKind::kFixed;
  if (command.profile.empty()) return options;
  const Profile profile = Profile::read(command.profile);
  options.cost = TaskCost(profile.attention(heads, "forward"));
  for (double& seconds : options.ci) seconds *= 1e12;
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

void run(const PlanCommand& command) {
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
  const bool quiet = command.json == "-" || command.dump == "-";
  if (!quiet) print_reports(layout, reports);
  if (!command.json.empty()) write_json(command.compare ? Json(entries) : entries.front(), command.json);
  if (command.dump == "-") {
    std::printf("%s\n", dump_plan(result.plan).c_str());
  } else if (!command.dump.empty()) {
    write_file_atomically(command.dump, dump_plan(result.plan) + "\n");
  }
  if (!command.picture.empty()) {
    const auto chosen = std::find_if(reports.begin(), reports.end(), [&](const PlanReport& report) {
      return report.digest == result.plan.digest();
    });
    write_file_atomically(command.picture, plan_picture(*chosen, make_exchange(result.plan), options.bytes));
  }
}

void add_batch_options(CLI::App& app, PlanCommand& command) {
  add_documents_options(app, command.documents);
  auto* dataset = app.add_option("--dataset", command.dataset,
                                 "prefix of a Megatron .bin/.idx pair: one step's documents");
  dataset->excludes("--docs")->excludes("--distribution");
  app.add_option("--ranks", command.ranks, "ranks for --dataset")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->needs(dataset);
  app.add_option("--tokens", command.tokens, "tokens of a step of --dataset, over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->needs(dataset);
  app.add_option("--step", command.step, "which step of --dataset")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->needs(dataset);
}

void add_planning_options(CLI::App& app, PlanCommand& command) {
  PlanOptions& options = command.options;
  app.add_option("--model", command.model, "preset or config.json, for the bytes of a row")
      ->capture_default_str();
  app.add_option("--policy", command.policy, "cad, none, wlb, cp or cp-seq")->capture_default_str();
  app.add_option("--layout", command.layout, "fixed, or free: documents may change rank")
      ->capture_default_str();
  app.add_option("--tolerance", options.tolerance,
                 "how much later than the best common time a server may finish")
      ->capture_default_str();
  app.add_option("--min-gain", options.min_gain,
                 "least load moved per byte: pairs, or seconds with a profile");
  app.add_option("--search", options.search_moves, "changes tried after the greedy plan; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--profile", command.profile, "measured times: loads are seconds");
  app.add_option("--speeds", options.speeds, "A,B,…: each server's speed")->delimiter(',');
  app.add_option("--ci", options.ci, "A,B,…: each server's other work, in the unit of loads")->delimiter(',');
  app.add_option("--dedicated", options.dedicated, "servers that are home to no tokens")
      ->capture_default_str();
  app.add_option("--cp", options.cp, "ranks of a group, for wlb, cp and cp-seq")->capture_default_str();
  app.add_option("--max-kv-rows", options.kv_row_limit, "K/V rows a server may hold, its own included");
  app.add_option("--max-bytes", options.byte_limit, "bytes a server may send, and receive, in one layer");
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
  app->add_option("--picture", command->picture, "draw loads and exchanges as SVG");
  app->callback([command] { run(*command); });
}

}  // namespace distca
