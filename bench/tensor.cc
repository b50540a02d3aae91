// What tensor parallelism costs in waiting: layers without their core attention, forward and backward, on
// groups of thread ranks with virtual clocks, with the collectives in runs of rows that travel beside
// products and, as the baseline, in one piece. Links are such that a group's collectives take half as long as
// the compute.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/threads.h"
#include "model/llama.h"

namespace distca {
namespace {

struct Setup {
  int32_t tp = 2, groups = 4;
  int64_t hidden = 512, rows = 2048, layers = 2, runs = 4, steps = 5;
  double transfer_over_compute = 0.5;
};

LlamaConfig config_of(const Setup& setup) {
  LlamaConfig config;
  config.vocab_size = 1024;
  config.hidden_size = setup.hidden;
  config.intermediate_size = 3 * setup.hidden;
  config.num_hidden_layers = setup.layers;
  config.head_dim = 64;
  config.num_attention_heads = setup.hidden / config.head_dim;
  config.num_key_value_heads = config.num_attention_heads / 2;
  return config;
}

/// Seconds on a rank's clock, of which it waited for collectives, and bytes it sent in them.
struct Step {
  double seconds = 0, exposed = 0, bytes = 0;
};

void run_layers(const LlamaParameters& model, int64_t rows) {
  const at::Tensor positions = at::arange(rows, at::kLong), targets = positions.remainder(1024);
  const Rope rope = make_rope(model.config, positions, model.dtype);
  at::Tensor x = embed(model, targets);
  for (int64_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    const Qkv qkv = pre_attention(model, layer, x, rope);
    const at::Tensor kv = (qkv.k + qkv.v).repeat_interleave(qkv.q.size(1) / qkv.k.size(1), 1);
    x = post_attention(model, layer, x, qkv.q + kv);
  }
  loss_sum(model, x, targets).backward();
}

/// The median step of the worst rank.
Step measure(const Setup& setup, const LinkOptions& link, int64_t runs) {
  const int32_t ranks = setup.tp * setup.groups;
  std::vector<std::vector<Step>> steps(ranks);
  FabricOptions options;
  options.link = link;
  options.link.clock = LinkOptions::Clock::kVirtual;
  run_thread_ranks(ranks, options, [&](Fabric& world) {
    at::set_num_threads(1);
    const auto fabric = world.split(world.rank() / setup.tp, "tensor-parallel groups");
    TensorGroup group(*fabric);
    group.runs = runs;
    LlamaPart part = LlamaPart::whole(config_of(setup));
    part.tp_rank = fabric->rank();
    part.tp_size = setup.tp;
    LlamaParameters model = make_llama(config_of(setup), part, at::kFloat);
    model.group = &group;
    initialize(model, 1);
    for (int64_t step = 0; step <= setup.steps; ++step) {
      fabric->barrier("start of a step");
      const double begin = fabric->now(), waited = group.wait_s;
      const int64_t sent = group.bytes;
      run_layers(model, setup.rows);
      if (step > 0) {  // the first touches all memory
        steps[world.rank()].push_back(
            {fabric->now() - begin, group.wait_s - waited, static_cast<double>(group.bytes - sent)});
      }
    }
  });
  Step worst;
  for (std::vector<Step>& of_rank : steps) {
    std::sort(of_rank.begin(), of_rank.end(),
              [](const Step& a, const Step& b) { return a.exposed < b.exposed; });
    const Step& middle = of_rank[of_rank.size() / 2];
    if (middle.exposed >= worst.exposed) worst = middle;
  }
  return worst;
}

void run(const Setup& setup, const std::string& json) {
  const Step free = measure(setup, {}, setup.runs);
  LinkOptions link;
  link.bandwidth = free.bytes / (setup.transfer_over_compute * (free.seconds - free.exposed));
  const Step whole = measure(setup, link, 1), runs = measure(setup, link, setup.runs);
  const double ratio = whole.exposed / runs.exposed;
  if (json != "-") {
    std::printf("tp %d × %d groups, %lld rows, hidden %lld, %lld layers; %.1f MB a step at %.0f MB/s\n",
                setup.tp, setup.groups, static_cast<long long>(setup.rows),
                static_cast<long long>(setup.hidden), static_cast<long long>(setup.layers), free.bytes / 1e6,
                link.bandwidth / 1e6);
    std::printf("%-26s %10s %10s\n", "collectives", "step", "exposed");
    std::printf("%-26s %8.1f ms %8.1f ms\n", "free of cost", free.seconds * 1e3, free.exposed * 1e3);
    std::printf("%-26s %8.1f ms %8.1f ms\n", "in one piece", whole.seconds * 1e3, whole.exposed * 1e3);
    std::printf("%-26s %8.1f ms %8.1f ms   %.2f of that in one piece\n",
                format("in {} runs of rows", setup.runs).c_str(), runs.seconds * 1e3, runs.exposed * 1e3,
                1 / ratio);
  }
  if (json.empty()) return;
  const auto row = [](const char* name, double value, const char* unit, double of) {
    return Json{
        {"name", name}, {"value", value}, {"unit", unit}, {"baseline", "in one piece"}, {"ratio", of}};
  };
  const Json out = {{"rows",
                     {row("tensor/exposed", runs.exposed, "s", ratio),
                      row("tensor/step", runs.seconds, "s", whole.seconds / runs.seconds)}}};
  if (json == "-") {
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    write_file_atomically(json, out.dump(2) + "\n");
  }
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  distca::Setup setup;
  std::string json;
  CLI::App app("Exposed time of tensor-parallel collectives");
  app.add_option("--tp", setup.tp, "ranks of a group")->capture_default_str();
  app.add_option("--groups", setup.groups)->capture_default_str();
  app.add_option("--rows", setup.rows, "of a group's chunk")->capture_default_str();
  app.add_option("--hidden", setup.hidden)->capture_default_str();
  app.add_option("--layers", setup.layers)->capture_default_str();
  app.add_option("--runs", setup.runs, "runs of rows that a collective is cut into")->capture_default_str();
  app.add_option("--steps", setup.steps)->capture_default_str();
  app.add_option("--transfer", setup.transfer_over_compute, "collectives' time over the compute")
      ->capture_default_str();
  app.add_option("--json", json, "write the rows to a file, or - for standard output");
  CLI11_PARSE(app, argc, argv);
  try {
    distca::run(setup, json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_tensor: %s\n", error.what());
    return 1;
  }
  return 0;
}
