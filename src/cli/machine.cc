#include "cli/machine.h"

#include <sys/utsname.h>

#include <fstream>
#include <thread>

namespace distca {

Json describe_machine() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, cpu = "unknown";
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    cpu = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  utsname names{};
  uname(&names);
  return {{"cpu", cpu},
          {"cores", std::thread::hardware_concurrency()},
          {"os", std::string(names.sysname) + " " + names.release + " " + names.machine}};
}

}  // namespace distca
