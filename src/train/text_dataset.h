// A data set from files of text: each file becomes one document.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/tokenizer.h"

namespace distca {

/// The ordinary files among `paths` and, recursively, in the folders among them: in the order given, a
/// folder's files sorted by path. Links to folders are not followed. Throws InputError that names a path that
/// isn't there.
std::vector<std::string> find_files(const std::vector<std::string>& paths);

struct TextDatasetReport {
  int64_t documents = 0, tokens = 0, bytes = 0;   // of text
  int64_t empty = 0, binary = 0, unreadable = 0;  // files that were skipped
};

/// Called after each file with what is done so far, and how many files that was.
using TextDatasetProgress = std::function<void(const TextDatasetReport& report, int64_t files_done)>;

/// Writes PREFIX.bin and .idx: a document for each of `files`, its tokens and the end-of-document token.
/// Files that are empty, can't be read, or hold a zero byte are skipped and counted. Throws InputError when
/// no text is left, and then writes nothing.
TextDatasetReport build_text_dataset(const std::string& prefix, const std::vector<std::string>& files,
                                     const Tokenizer& tokenizer, const TextDatasetProgress& progress = {});

}  // namespace distca
