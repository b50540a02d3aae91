// `distca simulate`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "model/config.h"
#include "sim/recorded_report.h"

namespace distca {
namespace {

struct SimulateOptions {
  std::string recorded, fit, profile = "h200", json;
};

ModelShape shape_of(const std::string& name, const LlamaConfig& config) {
  return {name,
          config.hidden_size,
          config.num_hidden_layers,
          config.num_attention_heads,
          config.num_key_value_heads,
          config.head_dim,
          config.intermediate_size,
          config.vocab_size,
          config.tie_word_embeddings};
}

/// "34b" in a table of recorded runs is the preset llama-34b.
ModelShape recorded_model(const std::string& name) {
  const bool is_size = name.find_first_not_of("0123456789b") == std::string::npos;
  return shape_of(name, find_llama_config(is_size ? "llama-" + name : name));
}

void simulate_recorded(const SimulateOptions& options) {
  const std::vector<RecordedRow> rows = parse_recorded(read_text(options.recorded), options.recorded);
  DeviceProfile profile = find_device_profile(options.profile);
  if (!options.fit.empty()) {
    profile = fit_recorded(rows, recorded_model, profile);
    write_file_atomically(options.fit, dump_device_profile(profile));
  }
  const std::vector<RecordedPrediction> predictions = predict_recorded(rows, recorded_model, profile);
  const RecordedReport report = report_recorded(rows, predictions);
  if (options.json != "-") std::fputs(recorded_text(rows, predictions, report).c_str(), stdout);
  if (!options.json.empty()) {
    write_json(parse_json(recorded_json(rows, predictions, report), "report"), options.json);
  }
}

}  // namespace

void add_simulate_command(CLI::App& program) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = program.add_subcommand("simulate", "predict training iterations on a cluster");
  command->add_option("--recorded", options->recorded,
                      "predict every row of this table of measured iterations");
  command
      ->add_option("--fit", options->fit,
                   "fit the profile's constants to the table first, and write the profile to this file")
      ->needs("--recorded");
  command->add_option("--profile", options->profile, "h100, h200, or a file")->capture_default_str();
  command->add_option("--json", options->json, "write the results to this file; - is standard output");
  command->callback([options] {
    DISTCA_CHECK_INPUT(!options->recorded.empty(), "simulate needs --recorded FILE");
    simulate_recorded(*options);
  });
}

}  // namespace distca
