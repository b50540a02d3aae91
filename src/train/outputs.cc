#include "train/outputs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

/// Makes a file in a folder and removes it. Returns the system's reason why not, or "".
std::string try_file_in(const fs::path& folder) {
  const std::string probe = (folder / format(".distca-probe-{}.tmp", ::getpid())).string();
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return std::strerror(errno);
  ::close(file);
  ::unlink(probe.c_str());
  return "";
}

fs::path folder_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent;
}

bool is_metrics_line(const std::string& line) {
  const Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return value.is_object() && value.contains("step") && value["step"].is_number_integer() &&
         value.contains("loss");
}

/// The first line of `text`, from 1, that is no metrics line, or 0. A last one that was cut off may begin
/// one.
int64_t first_foreign_line(const std::string& text) {
  const std::string start = "{\"step\":";
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      const std::string cut = text.substr(begin, start.size());
      return start.rfind(cut, 0) == 0 ? 0 : number;
    }
    if (!is_metrics_line(text.substr(begin, end - begin))) return number;
    begin = end + 1;
  }
  return 0;
}

}  // namespace

void check_output_path(const std::string& key, const std::string& path) {
  std::error_code ignored;
  DISTCA_CHECK_INPUT(fs::path(path).has_filename() && !fs::is_directory(path, ignored),
                     "{} = \"{}\": is a folder; name a file", key, path);
  DISTCA_CHECK_INPUT(fs::is_directory(folder_of(path), ignored), "{} = \"{}\": there is no folder {}", key,
                     path, folder_of(path).string());
  DISTCA_CHECK_INPUT(!fs::exists(path, ignored) || fs::is_regular_file(path, ignored),
                     "{} = \"{}\": is not an ordinary file", key, path);
}

void probe_output(const std::string& key, const std::string& path) {
  const std::string reason = try_file_in(folder_of(path));
  DISTCA_CHECK_INPUT(reason.empty(), "{} = \"{}\": can't be written: {}", key, path, reason);
}

void probe_folder(const std::string& key, const std::string& dir) {
  std::vector<fs::path> made;
  std::error_code error;
  fs::path missing = fs::absolute(dir).lexically_normal();
  if (!missing.has_filename()) missing = missing.parent_path();
  for (; !fs::exists(missing, error) && missing.has_relative_path(); missing = missing.parent_path())
    made.push_back(missing);
  fs::create_directories(dir, error);
  std::string reason = error ? error.message() : "";
  if (reason.empty() && !fs::is_directory(dir, error)) reason = "Not a directory";
  if (reason.empty()) reason = try_file_in(dir);
  for (const fs::path& folder : made) ::rmdir(folder.c_str());
  DISTCA_CHECK_INPUT(reason.empty(), "{} = \"{}\": no folder that can be written: {}", key, dir, reason);
}

void check_metrics(const std::string& path, bool resumes) {
  check_output_path("train.metrics", path);
  std::error_code ignored;
  if (!fs::exists(path, ignored) || fs::is_empty(path, ignored)) return;
  DISTCA_CHECK_INPUT(resumes,
                     "train.metrics = \"{}\": holds something already: remove it, name another file, or set "
                     "checkpoint.resume to go on with its run",
                     path);
  const int64_t foreign = first_foreign_line(read_text(path));
  DISTCA_CHECK_INPUT(foreign == 0,
                     "train.metrics = \"{}\": line {} is not of a metrics file, so it is left alone: remove "
                     "the file or name another",
                     path, foreign);
}

}  // namespace distca
