#include "cli/output_path.h"

#include "train/outputs.h"

namespace distca {

void check_command_output(const std::string& option, const std::string& path) {
  if (path.empty() || path == "-") return;
  check_output_path(option, path);
  probe_output(option, path);
}

}  // namespace distca
