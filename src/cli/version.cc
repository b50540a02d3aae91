// `distca version`
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"

namespace distca {

void add_version_command(CLI::App& program) {
  program.add_subcommand("version", "print the version")->callback([] { std::puts(kVersion); });
}

}  // namespace distca
