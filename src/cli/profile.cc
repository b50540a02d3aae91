// `distca profile`
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>

#include "attend/attention_profile.h"
#include "attend/device.h"
#include "base/heap.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "model/config.h"
#include "model/layer_timing.h"

namespace distca {
namespace {

struct Options {
  ProfileOptions profile;
  std::string device = "cpu", out, model = "tiny";
};

/// A bar on a terminal, drawn over itself; nothing elsewhere.
class ProgressBar {
 public:
  void show(const char* part, double done) {
    if (isatty(STDERR_FILENO) == 0) return;
    constexpr int kWidth = 40;
    const int full = static_cast<int>(done * kWidth);
    std::fprintf(stderr, "\r%-16s [%-*s] %3.0f%%%s", part, kWidth, std::string(full, '#').c_str(), done * 100,
                 done >= 1 ? "\n" : "");
  }
};

Json attention_json(const AttentionProfile& profile) {
  Json grids = Json::array();
  for (const AttentionGrid& grid : profile.grids) {
    grids.push_back({{"direction", grid.direction},
                     {"head_dim", grid.shape.head_dim},
                     {"heads", grid.shape.heads},
                     {"kv_heads", grid.shape.kv_heads},
                     {"q", grid.times.q},
                     {"kv", grid.times.kv},
                     {"seconds", grid.times.seconds}});
  }
  return grids;
}

void print_grids(const AttentionProfile& profile) {
  for (const AttentionGrid& grid : profile.grids) {
    std::printf(
        "core attention %s, %lld heads, %lld key/value heads, head_dim %lld: milliseconds of q rows (down) "
        "and kv keys (across)\n%8s",
        grid.direction.c_str(), static_cast<long long>(grid.shape.heads),
        static_cast<long long>(grid.shape.kv_heads), static_cast<long long>(grid.shape.head_dim), "");
    for (const int64_t kv : grid.times.kv) std::printf(" %9lld", static_cast<long long>(kv));
    for (size_t i = 0; i < grid.times.q.size(); ++i) {
      std::printf("\n%8lld", static_cast<long long>(grid.times.q[i]));
      for (const double seconds : grid.times.seconds[i]) std::printf(" %9.3f", seconds * 1e3);
    }
    std::printf("\n");
  }
}

/// What is said of links: those between threads of this machine. A device alone has none.
Json links_json(const LinkProfile& link) {
  const Json one = {{"latency_s", link.latency_s}, {"bytes_per_s", link.bytes_per_s}};
  return {{"intra", one}, {"inter", one}};
}

void run(Options& options) {
  keep_freed_memory();
  const at::Device device = options.profile.device = device_of(options.device);
  const LlamaConfig model = find_llama_config(options.model);
  const AttentionShape shape{model.num_attention_heads, model.num_key_value_heads, model.head_dim,
                             1 / std::sqrt(static_cast<double>(model.head_dim))};
  ProgressBar bar;
  const bool quick = options.profile.quick;
  const AttentionProfile attention =
      profile_attention(shape, options.profile, [&](double done) { bar.show("core attention", done); });
  const int64_t most_tokens = quick ? 512 : device.is_cpu() ? 4096 : 65536;
  const LayerTimes layer = time_layer(
      model, most_tokens, quick ? 5 : 30, [&](double done) { bar.show("linear layers", done); }, device);

  const Json machine = describe_machine(device);
  Json profile = {
      {"name", device.is_cpu() ? machine["cpu"] : machine["device"]},
      {"source", device.is_cpu() ? "measured by distca profile; links between threads of one machine"
                                 : "measured by distca profile in bfloat16; one device, so no links"},
      {"attention", attention_json(attention)},
      {"linear",
       {{"model", options.model},
        {"tokens", layer.tokens},
        {"forward_s", layer.forward_s},
        {"backward_s", layer.backward_s}}},
      {"fit",
       {{"points", attention.fit.points},
        {"median_error", attention.fit.median_error},
        {"p90_error", attention.fit.p90_error},
        {"max_error", attention.fit.max_error}}},
      {"machine", machine}};
  LinkProfile link;
  if (device.is_cpu()) {
    link = profile_thread_link(options.profile);
    profile["links"] = links_json(link);
  }
  write_json(profile, options.out);
  if (options.out == "-") return;
  print_grids(attention);
  std::printf("linear layers of %s, milliseconds of one layer:\n", options.model.c_str());
  for (size_t i = 0; i < layer.tokens.size(); ++i) {
    std::printf("%8lld tokens: forward %.3f, backward %.3f\n", static_cast<long long>(layer.tokens[i]),
                layer.forward_s[i] * 1e3, layer.backward_s[i] * 1e3);
  }
  if (device.is_cpu())
    std::printf("link between threads: %.1f µs, %.2f GB/s\n", link.latency_s * 1e6, link.bytes_per_s / 1e9);
  std::printf(
      "off the grid, %lld tasks: interpolation is within %.1f%% (median), %.1f%% (nine in ten), %.1f%% "
      "(all)\n",
      static_cast<long long>(attention.fit.points), attention.fit.median_error * 100,
      attention.fit.p90_error * 100, attention.fit.max_error * 100);
  std::printf("written to %s\n", options.out.c_str());
}

}  // namespace

void add_profile_command(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("profile", "measure this machine for the planner and the simulator");
  command->add_option("--out,--json", options->out, "the profile's file; - is standard output")->required();
  command->add_option("--model", options->model, "a config.json or a preset whose layers are measured")
      ->capture_default_str();
  add_device_option(*command, options->device);
  command->add_flag("--quick", options->profile.quick, "a smaller grid and fewer repeats");
  command->callback([options] { run(*options); });
}

}  // namespace distca
