// `distca bench attention`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "attend/attention_bench.h"
#include "attend/device.h"
#include "attend/device_bench.h"
#include "base/heap.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/machine.h"

namespace distca {
namespace {

struct Options {
  AttentionBenchOptions bench;
  std::string device = "cpu", json;
};

Json bench_json(const AttentionBench& bench, at::Device device) {
  Json rows = Json::array();
  for (const BenchRow& row : bench.rows) {
    rows.push_back({{"name", row.name},
                    {"value", row.value},
                    {"unit", row.unit},
                    {"baseline", row.baseline},
                    {"ratio", row.ratio}});
  }
  Json machine = describe_machine(device);
  machine["product_gflops"] = bench.product;
  if (device.is_cpu()) {
    machine["target"] = bench.target;
    machine["blas"] = bench.blas;
    machine["multiply_add_gflops"] = bench.multiply_add;
    machine["product_share"] = bench.product_share;
  }
  return {{"machine", machine}, {"rows", rows}};
}

void run(const Options& options) {
  keep_freed_memory();
  const at::Device device = device_of(options.device);
  const bool print = options.json != "-";
  if (print) std::printf("%-58s %10s  %-13s %-12s %6s\n", "name", "value", "unit", "baseline", "ratio");
  const auto report = [&](const BenchRow& row) {
    if (!print) return;
    std::printf("%-58s %10.1f  %-13s %-12s %6.2f\n", row.name.c_str(), row.value, row.unit.c_str(),
                row.baseline.c_str(), row.ratio);
    std::fflush(stdout);
  };
  const AttentionBench bench = device.is_cpu() ? bench_attention(options.bench, report)
                                               : bench_attention_on(device, options.bench, report);
  if (print && !device.is_cpu()) {
    std::printf("%s: bfloat16, times of the device; at::mm of 8192 %.0f GFLOP/s\n",
                describe_device(device).c_str(), bench.product);
  }
  if (print && bench.product_share > 0) {
    const std::string cpu = describe_machine()["cpu"];
    std::printf("%s, kernel compiled for %s, at::mm from %s\n", cpu.c_str(), bench.target.c_str(),
                bench.blas.c_str());
    std::printf("multiply-add loop %.0f GFLOP/s, at::mm of 1536 %.0f GFLOP/s: %.2f of it%s\n",
                bench.multiply_add, bench.product, bench.product_share,
                bench.product_share < kLeastProductShare
                    ? "; below .70 ratios to at::mm are void: other programs hold the core, try again later"
                    : "");
  }
  if (!options.json.empty()) write_json(bench_json(bench, device), options.json);
}

}  // namespace

void add_bench_attention_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("attention", "the kernel's rates beside a matrix product's and PyTorch's");
  command->add_flag("--quick", options->bench.quick, "fewer shapes and repeats: under 40 seconds");
  command->add_option("--only", options->bench.only, "only rows whose name contains this");
  add_device_option(*command, options->device);
  command->add_option("--json", options->json, "write the rows to this file; - is standard output");
  command->callback([options] { run(*options); });
}

}  // namespace distca
