#include "train/text_dataset.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "base/file.h"
#include "train/indexed_dataset.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

/// All that is no folder below one, sorted by path. A link to a folder isn't followed: it counts as a file,
/// which is then skipped with the others that can't be read.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  const auto options = fs::directory_options::skip_permission_denied;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, options)) {
    if (!entry.is_directory(ignored) || entry.is_symlink(ignored)) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::optional<MappedFile> open_readable(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;  // opening a pipe would wait for its writer
  try {
    return MappedFile(path);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

/// Adds a file as a document, or counts why it was skipped.
void add_file(const std::string& path, const Tokenizer& tokenizer, IndexedDatasetWriter& writer,
              TextDatasetReport& report) {
  const std::optional<MappedFile> file = open_readable(path);
  if (!file) {
    ++report.unreadable;
  } else if (file->bytes().empty()) {
    ++report.empty;
  } else if (file->bytes().find('\0') != std::string_view::npos) {
    ++report.binary;
  } else {
    std::vector<int64_t> tokens = tokenizer.encode(file->bytes());
    tokens.push_back(tokenizer.end_of_document());
    writer.add_document(tokens);
    report.bytes += static_cast<int64_t>(file->bytes().size());
    report.documents = writer.documents();
    report.tokens = writer.tokens();
  }
}

}  // namespace

std::vector<std::string> find_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (fs::is_directory(path)) {
      const std::vector<std::string> below = files_below(path);
      files.insert(files.end(), below.begin(), below.end());
    } else {
      DISTCA_CHECK_INPUT(fs::is_regular_file(path), "{}: is neither a file nor a folder", path);
      files.push_back(path);
    }
  }
  return files;
}

TextDatasetReport build_text_dataset(const std::string& prefix, const std::vector<std::string>& files,
                                     const Tokenizer& tokenizer, const TextDatasetProgress& progress) {
  IndexedDatasetWriter writer(prefix, token_type_for(tokenizer.vocabulary()));
  TextDatasetReport report;
  for (size_t i = 0; i < files.size(); ++i) {
    add_file(files[i], tokenizer, writer, report);
    if (progress) progress(report, static_cast<int64_t>(i) + 1);
  }
  DISTCA_CHECK_INPUT(report.documents > 0,
                     "there is no text in {} files: {} are empty, {} binary, {} unreadable", files.size(),
                     report.empty, report.binary, report.unreadable);
  writer.commit();
  return report;
}

}  // namespace distca
