#include "cli/output_path.h"

#include <unistd.h>

#include <filesystem>

#include "base/check.h"

namespace distca {

void check_output_path(const std::string& option, const std::string& path) {
  if (path.empty() || path == "-") return;
  std::error_code unreadable;
  DISTCA_CHECK_INPUT(!std::filesystem::is_directory(path, unreadable), "{} {}: is a folder; a file is needed",
                     option, path);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  DISTCA_CHECK_INPUT(std::filesystem::is_directory(folder, unreadable), "{} {}: there is no folder {}",
                     option, path, folder);
  DISTCA_CHECK_INPUT(::access(folder.c_str(), W_OK | X_OK) == 0, "{} {}: the folder {} can't be written",
                     option, path, folder);
}

}  // namespace distca
