// The commands of the program: each file of this folder adds one. A command's callback throws InputError for
// wrong input (exit code 2) and Error for a failure while running (exit code 1).
#pragma once

namespace CLI {
class App;
}

namespace distca {

inline constexpr const char* kVersion = "distca 0.1.0";

void add_data_command(CLI::App& program);
void add_bench_command(CLI::App& program);
void add_profile_command(CLI::App& program);
void add_train_command(CLI::App& program);
void add_plan_command(CLI::App& program);
void add_simulate_command(CLI::App& program);
void add_tune_command(CLI::App& program);
void add_version_command(CLI::App& program);

/// Within `distca bench`.
void add_bench_layer_command(CLI::App& bench);
void add_bench_attention_command(CLI::App& bench);

}  // namespace distca
