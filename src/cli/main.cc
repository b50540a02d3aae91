// The program `distca`: exit code 0 done, 1 a failure while running, 2 wrong input.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "cli/commands.h"

namespace {

/// A word that is no command leaves CLI11 asking for a command.
std::string wrong_usage(const CLI::App& program, const CLI::ParseError& error) {
  const std::string message = error.what();
  const std::vector<std::string> words = program.remaining(true);
  const bool asks_for_command = message.find("subcommand is required") != std::string::npos;
  if (asks_for_command && !words.empty()) return "'" + words.front() + "' is not a command";
  return asks_for_command ? "a command is needed" : message;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a full disk or a file-size limit is an error of the write, not a death
  CLI::App program{"distca: long-context training without stragglers, by core attention disaggregation"};
  program.set_version_flag("--version", distca::kVersion);
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
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    if (error.get_name() == "RuntimeError") return error.get_exit_code();
    std::fprintf(stderr, "distca: %s; see --help\n", wrong_usage(program, error).c_str());
    return 2;
  } catch (const distca::InputError& error) {
    std::fprintf(stderr, "distca: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distca: %s\n", distca::message_of(error).c_str());
    return 1;
  } catch (...) {
    std::fputs("distca: an exception that is no std::exception\n", stderr);
    return 1;
  }
  return 0;
}
