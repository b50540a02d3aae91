// `distca simulate`
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/cluster_flags.h"
#include "cli/commands.h"
#include "cli/output_path.h"
#include "cli/simulate_setup.h"
#include "sim/recorded_report.h"
#include "sim/report_page.h"

namespace distca {
namespace {

struct SimulateOptions {
  ClusterFlags cluster;
  std::string recorded, fit, json, trace, report;
  std::vector<std::string> policies, sweep;
};

/// "34b" in a table of recorded runs is the preset llama-34b.
ModelShape recorded_model(const std::string& name) {
  const bool is_size = name.find_first_not_of("0123456789b") == std::string::npos;
  return find_model_shape(is_size ? "llama-" + name : name);
}

void simulate_recorded(const SimulateOptions& options) {
  const std::vector<RecordedRow> rows = parse_recorded(read_text(options.recorded), options.recorded);
  DeviceProfile profile =
      find_device_profile(options.cluster.profile.empty() ? "h200" : options.cluster.profile);
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

/// The last disaggregated row, or the last of all.
size_t shown_row(const Study& study) {
  for (size_t i = study.rows.size(); i-- > 0;) {
    if (study.rows[i].choice.policy == Policy::kCad) return i;
  }
  return study.rows.size() - 1;
}

void write_report(const Study& study, const std::vector<StepDocuments>& draws, const Config& config,
                  const std::string& path) {
  ReportInputs inputs;
  inputs.study = &study;
  inputs.cad = shown_row(study);
  const PolicyChoice &base = study.rows[0].choice, &cad = study.rows[inputs.cad].choice;
  simulate_step(study.setup, base, draws[0], &inputs.base_detail);
  simulate_step(study.setup, cad, draws[0], &inputs.cad_detail);
  if (config.cluster.distribution == "wlbllm" || config.cluster.distribution == "prolong") {
    inputs.scale = scale_points(study, base, cad, distribution_named(config.cluster.distribution),
                                static_cast<uint64_t>(config.train.seed));
  }
  write_file_atomically(path, report_page(inputs));
}

void write_trace(const Study& study, const std::vector<StepDocuments>& draws, const std::string& path) {
  const PolicyChoice& traced = study.rows[shown_row(study)].choice;
  StepDetail detail;
  simulate_step(study.setup, traced, draws[0], &detail);
  write_file_atomically(path, chrome_trace(detail.events));
  std::fprintf(stderr, "%s: the first draw under %s\n", path.c_str(), traced.name().c_str());
}

Study simulate_one(const SimulateOptions& options, const Settings& swept) {
  const Config config = options.cluster.configuration(swept);
  const ClusterSetup setup = cluster_setup(config);
  const std::vector<PolicyChoice> choices = policy_choices(setup, config, options.policies);
  const std::vector<StepDocuments> draws = study_documents(setup, config);
  Study study = run_study(setup, choices, draws, show_simulated_steps);
  if (!options.trace.empty()) write_trace(study, draws, options.trace);
  if (!options.report.empty()) write_report(study, draws, config, options.report);
  return study;
}

struct SweptKey {
  std::string name, key;
  std::vector<std::string> values;
};

SweptKey parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  DISTCA_CHECK_INPUT(equals != std::string::npos, "--sweep {}: it takes name=value,value,…", text);
  SweptKey swept{text.substr(0, equals), "", {}};
  swept.key = key_of_flag(swept.name);
  DISTCA_CHECK_INPUT(!swept.key.empty(), "--sweep {}: {} is not an option with a value", text, swept.name);
  for (size_t begin = equals + 1; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    swept.values.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return swept;
}

/// A combination of the swept keys' values.
struct SweptPoint {
  Settings settings;
  Json values = Json::object();  // by the options' names
  std::string title;
};

/// Every combination, the last key changing fastest.
std::vector<SweptPoint> points_of(const std::vector<SweptKey>& keys) {
  size_t combinations = 1;
  for (const SweptKey& key : keys) combinations *= key.values.size();
  std::vector<SweptPoint> points(combinations);
  for (size_t i = 0; i < combinations; ++i) {
    size_t rest = i;
    for (size_t k = keys.size(); k-- > 0;) {
      const std::string& value = keys[k].values[rest % keys[k].values.size()];
      rest /= keys[k].values.size();
      points[i].settings[keys[k].key] = value;
      points[i].values[keys[k].name] = value;
      points[i].title = keys[k].name + "=" + value + " " + points[i].title;
    }
  }
  return points;
}

void simulate_sweep(const SimulateOptions& options) {
  std::vector<SweptKey> keys;
  for (const std::string& text : options.sweep) keys.push_back(parse_sweep(text));
  std::vector<SweptPoint> points = points_of(keys);
  for (const SweptPoint& point :
       points) {  // what is wrong with the last is said before the first is simulated
    const Config config = options.cluster.configuration(point.settings);
    policy_choices(cluster_setup(config), config, options.policies);
  }
  Json all = Json::array();
  for (SweptPoint& point : points) {
    const Study study = simulate_one(options, point.settings);
    if (options.json != "-")
      std::printf("%s== %s\n%s", all.empty() ? "" : "\n", point.title.c_str(), study_text(study).c_str());
    all.push_back({{"sweep", std::move(point.values)}, {"study", parse_json(study_json(study), "study")}});
  }
  if (!options.json.empty()) write_json(all, options.json);
}

void simulate(const SimulateOptions& options) {
  check_command_output("--json", options.json);
  check_command_output("--trace", options.trace);
  check_command_output("--report", options.report);
  check_command_output("--fit", options.fit);
  if (!options.recorded.empty()) return simulate_recorded(options);
  if (!options.sweep.empty()) return simulate_sweep(options);
  const Study study = simulate_one(options, {});
  if (options.json != "-") std::fputs(study_text(study).c_str(), stdout);
  if (!options.json.empty()) write_json(parse_json(study_json(study), "study"), options.json);
}

}  // namespace

void add_simulate_command(CLI::App& program) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = program.add_subcommand("simulate", "predict training steps on a cluster");
  add_cluster_flags(*command, options->cluster);
  command
      ->add_option(
          "--policy", options->policies,
          "policies to compare, the first is the base of the speed-up: none, cad, cad-free, wlb-4, …")
      ->delimiter(',');
  command->add_option("--sweep", options->sweep, "name=value,value,… of options above: a table each");
  command->add_option("--json", options->json, "write the results to this file; - is standard output");
  command->add_option("--trace", options->trace,
                      "write a Chrome trace of the first draw (opens in Perfetto)");
  command->add_option("--report", options->report,
                      "write a page with timelines, loads and memory to this file");
  command->add_option("--recorded", options->recorded,
                      "predict every row of this table of measured iterations");
  command
      ->add_option("--fit", options->fit,
                   "fit the profile's constants to the table first, and write the profile to this file")
      ->needs("--recorded");
  command->callback([options] { simulate(*options); });
}

}  // namespace distca
