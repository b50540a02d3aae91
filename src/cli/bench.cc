// `distca bench`: the group of measuring commands.
#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace distca {

void add_bench_command(CLI::App& program) {
  CLI::App* bench = program.add_subcommand("bench", "measure a part of the system on this machine");
  bench->require_subcommand(1);
  add_bench_layer_command(*bench);
  add_bench_attention_command(*bench);
}

}  // namespace distca
