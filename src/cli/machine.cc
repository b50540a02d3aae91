#include "cli/machine.h"

#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <thread>

#include "attend/device.h"

namespace distca {

Json describe_machine(at::Device device) {
  std::ifstream info("/proc/cpuinfo");
  std::string line, cpu = "unknown";
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    cpu = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  utsname names{};
  uname(&names);
  Json machine = {{"cpu", cpu},
                  {"cores", std::thread::hardware_concurrency()},
                  {"os", std::string(names.sysname) + " " + names.release + " " + names.machine}};
  if (!device.is_cpu()) machine["device"] = describe_device(device);
  return machine;
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu, or cuda where there is such a device")->capture_default_str();
}

}  // namespace distca
