// `distca tune`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/json.h"
#include "cli/cluster_flags.h"
#include "cli/commands.h"
#include "cli/simulate_setup.h"
#include "sim/tune.h"

namespace distca {
namespace {

struct TuneOptions {
  ClusterFlags cluster;
  std::string json;
};

void run_tune(const TuneOptions& options) {
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
