// `distca train` on ranks that are threads, one of which throws or hangs in the n-th operation of its fabric:
//
//   train_faults CONFIG.toml RANKS VICTIM throw|hang N [section.key=value …]
//
// Says "fault: rank V in OPERATION, while starting|training" when it comes to that. With VICTIM −1 nothing
// happens, and it says how many operations each rank has: "operations: rank V has N". Errors and exit codes
// are those of the program.
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "comm/testing.h"
#include "comm/threads.h"
#include "train/run.h"
#include "train/survivors.h"

namespace distca {
namespace {

struct Fault {
  int32_t victim = -1;
  bool hangs = false;
  int64_t operation = 0;
};

void strike(const Fault& fault, const std::string& operation, bool started, double timeout_s) {
  std::fprintf(stderr, "fault: rank %d in %s, while %s\n", fault.victim, operation.c_str(),
               started ? "training" : "starting");
  // Longer than the first wait for it.
  if (fault.hangs) std::this_thread::sleep_for(std::chrono::duration<double>(1.5 * timeout_s + 0.5));
  throw std::runtime_error("struck in " + operation);
}

void train(const RunInputs& inputs, int32_t ranks, const Fault& fault) {
  const Config& config = inputs.config;
  FabricOptions options;
  options.timeout_s = config.parallel.timeout;
  options.can_lose = [&](const std::vector<int32_t>& lost) {
    return can_go_on_without(grid_of(config, ranks), lost);
  };
  run_thread_ranks(ranks, options, [&](Fabric& fabric) {
    int64_t operations = 0;
    bool started = false;
    const auto watched = testing::watched_fabric(fabric, [&](const std::string& operation) {
      if (fabric.rank() == fault.victim && operations == fault.operation)
        strike(fault, operation, started, options.timeout_s);
      ++operations;
      started = started || operation == "start of the run";
    });
    run_training(*watched, inputs);
    if (fault.victim < 0)
      std::fprintf(stderr, "operations: rank %d has %lld\n", fabric.rank(),
                   static_cast<long long>(operations));
  });
}

int run(const std::vector<std::string>& arguments) {
  try {
    const Fault fault = {std::stoi(arguments.at(2)), arguments.at(3) == "hang", std::stoll(arguments.at(4))};
    const Config config = read_config(arguments.at(0), {arguments.begin() + 5, arguments.end()});
    train(read_inputs(config), std::stoi(arguments.at(1)), fault);
    return 0;
  } catch (const InputError& error) {
    std::fprintf(stderr, "train_faults: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_faults: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  return distca::run({argv + 1, argv + argc});
}
