// `distca bench layer`: one disaggregated attention layer on a given batch.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "attend/device.h"
#include "attend/layer_bench.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/heap.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/documents_options.h"
#include "cli/machine.h"
#include "cli/ranks.h"
#include "plan/policy.h"
#include "plan/report.h"
#include "plan/traffic.h"

namespace distca {
namespace {

struct Options {
  DocumentsOptions documents;
  std::string policy = "cad", memory = "resend", dtype, device = "cpu", json, plan_file;
  double tolerance = .02, timeout = 600;
  int32_t ranks = 0;
  int64_t heads = 8, kv_heads = 0, head_dim = 64;
  LayerBenchOptions bench;
  bool no_check = false;
};

Layout batch_of(const Options& options) {
  if (options.ranks == 0) return layout_of(options.documents);
  const Documents documents = documents_of(options.documents);
  std::vector<int64_t> lengths;
  for (const auto& chunk : documents.chunks) lengths.insert(lengths.end(), chunk.begin(), chunk.end());
  Layout layout = pack_in_order(std::move(lengths), options.ranks);
  DISTCA_CHECK_INPUT(layout.rows >= kTileRows,
                     "{} tokens on {} ranks are chunks of {} rows; at least {} are needed", layout.tokens(),
                     options.ranks, layout.rows, kTileRows);
  return layout;
}

Plan plan_of(const Options& options, const RowBytes& bytes) {
  const Layout layout = batch_of(options);
  if (!options.plan_file.empty()) {
    Plan plan = load_plan(options.plan_file);
    try {
      check_same_documents(plan, layout);
    } catch (const InputError& error) {
      throw InputError(options.plan_file + ": " + error.what());
    }
    return plan;
  }
  PlanOptions planning;
  planning.policy = policy_named(options.policy);
  planning.tolerance = options.tolerance;
  planning.bytes = bytes;
  return make_plan(layout, planning).plan;
}

// A row of the table.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;  // "1" for plain numbers
};

std::vector<Row> rows_of(const Plan& plan, const RowBytes& bytes, const LayerBenchResult& result) {
  const Traffic traffic = planned_traffic(plan, make_exchange(plan), bytes);
  std::vector<Row> rows = {
      {"layer/load_max_over_mean", max_over_mean(pairs_of_servers(plan)), "1"},
      {"layer/padded_load_max_over_mean", max_over_mean(padded_pairs_of_servers(plan)), "1"},
  };
  const std::pair<const char*, int64_t> planned[] = {
      {"q", traffic.q}, {"k", traffic.k}, {"v", traffic.v}, {"o", traffic.o}, {"lse", traffic.lse}};
  for (const auto& [kind, count] : planned) {
    rows.push_back({std::string("layer/bytes_planned/") + kind, static_cast<double>(count), "B"});
  }
  for (const KindBytes& sent : result.sent) {
    // Forward's kinds go by their plain names, as the plan's do.
    const bool forward = sent.kind.rfind("forward/", 0) == 0;
    const std::string kind = forward ? sent.kind.substr(8) : sent.kind;
    rows.push_back({"layer/bytes_sent/" + kind, static_cast<double>(sent.bytes), "B"});
  }
  for (const StepSeconds& step : result.steps) {
    rows.push_back({"layer/seconds_max/" + step.step, step.max_s, "s"});
    rows.push_back({"layer/seconds_mean/" + step.step, step.mean_s, "s"});
    rows.push_back({"layer/wait/" + step.step, step.wait_max_s, "s"});
  }
  rows.push_back({"layer/buffers", static_cast<double>(result.pool_bytes), "B"});
  for (const auto& error : result.errors)
    rows.push_back({"layer/max_error/" + error.tensor, error.value, "1"});
  return rows;
}

void print(const Options& options, const Plan& plan, const std::vector<Row>& rows,
           const std::string& fabric) {
  std::printf(
      "one attention layer: %zu documents, %lld tokens, %d ranks (%s), policy %s, %s, %lld heads / %lld kv "
      "heads of %lld\n",
      plan.layout.doc_lengths.size(), static_cast<long long>(plan.layout.tokens()), plan.servers,
      fabric.c_str(), options.plan_file.empty() ? options.policy.c_str() : options.plan_file.c_str(),
      options.memory.c_str(), static_cast<long long>(options.bench.shape.heads),
      static_cast<long long>(options.bench.shape.kv_heads),
      static_cast<long long>(options.bench.shape.head_dim));
  std::printf(
      "seconds are the slowest rank's %s; wait is wall time with nothing else to do; errors are\n"
      "taken against PyTorch's attention per document, over its largest entry\n\n",
      options.bench.device.is_cpu() ? "thread CPU time" : "time of the device");
  for (const Row& row : rows) {
    if (row.unit == "B") {
      std::printf("%-36s %16.0f B\n", row.name.c_str(), row.value);
    } else if (row.name.rfind("layer/max_error/", 0) == 0) {
      std::printf("%-36s %16.2e\n", row.name.c_str(), row.value);
    } else {
      std::printf("%-36s %16.6f %s\n", row.name.c_str(), row.value, row.unit == "s" ? "s" : "");
    }
  }
}

// What was run, so that a result can be told from another.
Json describe_run(const Options& options, const Plan& plan, const std::string& fabric) {
  const AttentionShape& shape = options.bench.shape;
  Json out = {{"fabric", fabric},
              {"ranks", plan.servers},
              {"documents", plan.layout.doc_lengths.size()},
              {"tokens", plan.layout.tokens()},
              {"rows", plan.layout.rows},
              {"heads", shape.heads},
              {"kv_heads", shape.kv_heads},
              {"head_dim", shape.head_dim},
              {"dtype", options.bench.dtype},
              {"device", options.device},
              {"kernel", options.bench.kernel},
              {"memory", options.memory},
              {"repeats", options.bench.repeats}};
  if (options.plan_file.empty()) {
    out["policy"] = options.policy;
    out["tolerance"] = options.tolerance;
  } else {
    out["plan"] = options.plan_file;
  }
  out["digest"] = hex_digest(plan.digest());
  return out;
}

Json json_of(const Json& run, const std::vector<Row>& rows, at::Device device) {
  Json out = {{"machine", describe_machine(device)}, {"run", run}, {"rows", Json::array()}};
  for (const Row& row : rows) {
    out["rows"].push_back({{"name", row.name},
                           {"value", row.value},
                           {"unit", row.unit},
                           {"baseline", nullptr},
                           {"ratio", nullptr}});
  }
  return out;
}

// What every rank needs, made from the options alone. Throws InputError.
struct Prepared {
  RowBytes bytes;
  Plan plan;
};

Prepared prepare_run(Options& options) {
  options.bench.device = device_of(options.device);
  if (!options.bench.device.is_cpu()) show_spans_to_profilers();
  // Flash attention takes 16-bit types alone.
  options.bench.dtype = !options.dtype.empty()          ? options.dtype
                        : options.bench.device.is_cpu() ? "float32"
                                                        : "bfloat16";
  options.bench.shape = {options.heads, options.kv_heads == 0 ? options.heads : options.kv_heads,
                         options.head_dim, 1 / std::sqrt(static_cast<double>(options.head_dim)), kNoWindow};
  options.bench.shape.check();
  options.bench.keep = options.memory == "keep";
  options.bench.check = !options.no_check;
  const int64_t element = options.bench.dtype == "float64" ? 8 : options.bench.dtype == "bfloat16" ? 2 : 4;
  const RowBytes bytes = row_bytes(
      {options.bench.shape.heads, options.bench.shape.kv_heads, options.bench.shape.head_dim, element});
  return {bytes, plan_of(options, bytes)};
}

void run_rank(Fabric& fabric, const Options& options, const Prepared& prepared) {
  const Plan& plan = prepared.plan;
  DISTCA_CHECK_INPUT(fabric.world_size() == plan.servers,
                     "the batch is for {} ranks, the job has {}; use --ranks {}", plan.servers,
                     fabric.world_size(), fabric.world_size());
  check_exchanges(fabric, options.bench.device);
  const LayerBenchResult result = bench_layer(fabric, plan, options.bench);
  if (fabric.rank() != 0) return;
  const std::vector<Row> rows = rows_of(plan, prepared.bytes, result);
  if (options.json != "-") print(options, plan, rows, fabric.kind());
  if (!options.json.empty())
    write_json(json_of(describe_run(options, plan, fabric.kind()), rows, options.bench.device), options.json);
}

int run(Options& options) {
  keep_freed_memory();
  DISTCA_CHECK_INPUT(options.timeout > 0 && options.timeout <= 1e6,
                     "--timeout {} is not above 0 and at most 1e6 seconds", options.timeout);
  const FabricOptions fabric{options.timeout};
  const at::DeviceType device = device_type_of(options.device);
  if (launched_as_rank(device)) {
    // Within the job, so that an error which all ranks find is printed once.
    return run_launched_rank(device, fabric,
                             [&](Fabric& world) { run_rank(world, options, prepare_run(options)); });
  }
  const Prepared prepared = prepare_run(options);
  run_ranks_as_threads(prepared.plan.servers, options.bench.device, fabric, {},
                       [&](Fabric& world) { run_rank(world, options, prepared); });
  return 0;
}

}  // namespace

void add_bench_layer_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "layer", "one attention layer on a batch: loads, bytes planned and sent, seconds of each step, errors");
  add_documents_options(*command, options->documents);
  command
      ->add_option("--ranks", options->ranks,
                   "pack the documents end to end over this many ranks; else a rank a chunk")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--policy", options->policy, "none, cad, wlb, cp or cp-seq")->capture_default_str();
  command->add_option("--tolerance", options->tolerance, "of the load's max/mean, above 1")
      ->capture_default_str();
  command->add_option("--plan", options->plan_file, "run this plan dump instead of planning");
  command->add_option("--heads", options->heads, "query heads")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--kv-heads", options->kv_heads, "key/value heads (default: as many as query heads)")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--head-dim", options->head_dim)->check(CLI::Range(1, 4096))->capture_default_str();
  command->add_option("--dtype", options->dtype,
                      "float32, float64 or bfloat16 (default: float32, on a CUDA device bfloat16)");
  add_device_option(*command, options->device);
  command->add_option("--memory", options->memory, "keep or resend")
      ->check(CLI::IsMember({"keep", "resend"}))
      ->capture_default_str();
  command
      ->add_option("--kernel", options->bench.kernel,
                   "auto, cpu, pytorch or reference; on a CUDA device flash")
      ->capture_default_str();
  command->add_option("--repeats", options->bench.repeats, "measured runs; medians are shown")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_flag("--no-check", options->no_check, "leave out the comparison with the dense result");
  command->add_option("--timeout", options->timeout, "seconds of any wait")->capture_default_str();
  command->add_option("--json", options->json, "also write the rows there; - is standard output");
  command->callback([options] {
    if (const int code = run(*options)) throw CLI::RuntimeError(code);
  });
}

}  // namespace distca
