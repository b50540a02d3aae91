// `distca tune`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/check.h"
#include "base/json.h"
#include "cli/cluster_flags.h"
#include "cli/commands.h"
#include "cli/output_path.h"
#include "cli/simulate_setup.h"
#include "sim/tune.h"

namespace distca {
namespace {

struct TuneOptions {
  ClusterFlags cluster;
  std::string json;
};

void run_tune(const TuneOptions& options) {
  for (const auto& [key, value] : options.cluster.flags) {
    const bool is_chosen = key == "parallel.tp" || key == "parallel.pp" || key == "parallel.cp";
    DISTCA_CHECK_INPUT(!is_chosen, "--{} {}: tune chooses it; leave it out", key.substr(9), value);
  }
  check_command_output("--json", options.json);
  const Config config = options.cluster.configuration();
  const ClusterSetup base = unchecked_setup(config);
  const auto documents = [&](const ClusterSetup& setup) { return study_documents(setup, config); };
  const Tuning tuning = tune(base, documents, show_simulated_steps);
  if (options.json != "-") std::fputs(tuning_text(tuning).c_str(), stdout);
  if (!options.json.empty()) write_json(parse_json(tuning_json(tuning), "tuning"), options.json);
}

}  // namespace

void add_tune_command(CLI::App& program) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command =
      program.add_subcommand("tune", "choose degrees, tolerance and memory for a cluster, and say why");
  add_cluster_flags(*command, options->cluster);
  command->add_option("--json", options->json, "write the results to this file; - is standard output");
  command->callback([options] { run_tune(*options); });
}

}  // namespace distca
