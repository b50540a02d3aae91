// The program `distca`: exit code 0 done, 1 a failure while running, 2 wrong input.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "base/check.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a full disk or a file-size limit is an error of the write, not a death
  CLI::App program{"distca: long-context training without stragglers, by core attention disaggregation"};
  program.require_subcommand(1);
  distca::add_data_command(program);
  distca::add_bench_command(program);
  distca::add_profile_command(program);
  distca::add_train_command(program);
  distca::add_plan_command(program);
  distca::add_simulate_command(program);
  distca::add_tune_command(program);
  distca::add_version_command(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help
    if (error.get_name() == "RuntimeError") return error.get_exit_code();
    std::fprintf(stderr, "distca: %s; see --help\n", error.what());
    return 2;
  } catch (const distca::InputError& error) {
    std::fprintf(stderr, "distca: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distca: %s\n", error.what());
    return 1;
  }
  return 0;
}
