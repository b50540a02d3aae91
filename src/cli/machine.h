// What machine a measurement was made on, as `bench --json` and `profile` say it.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "base/json.h"

namespace CLI {
class App;
}

namespace distca {

/// {"cpu", "cores", "os"}, and "device" where that isn't the CPU.
Json describe_machine(at::Device device = at::kCPU);

/// --device: a name for device_of().
void add_device_option(CLI::App& command, std::string& device);

}  // namespace distca
