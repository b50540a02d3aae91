// The safetensors file format, without tensors: 8 bytes of header length (little endian), a JSON header that
// gives each tensor's type, shape and place, and the tensors' bytes end to end. Readers trust nothing in the
// header: a file that was truncated or made up is an InputError before any of its tensors is touched. Format:
// github.com/huggingface/safetensors, README.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace distca {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F64", "F32", "BF16", "F16", "I64", …
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes, counted from the header's end
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by begin; end to end, without gap or overlap
  SafetensorsMetadata metadata;
  int64_t data_begin = 0;  // where in the file the tensors' bytes begin
};

/// Bytes of one element; 0 for a type that the format doesn't have.
int64_t safetensors_dtype_bytes(std::string_view dtype);

/// The header of a whole file's bytes. Throws InputError, beginning with `origin`, unless the header is well
/// formed, shapes and types agree with offsets, and the tensors fill the rest of the file exactly.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& origin);

/// A file mapped into memory, its header checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  /// Null when there is no tensor of that name.
  const SafetensorsEntry* find(const std::string& name) const;
  /// The bytes of one of its tensors, row-major, little endian, not necessarily aligned. Valid while this
  /// lives.
  std::string_view bytes(const SafetensorsEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;
};

/// Writes a file tensor by tensor; it appears whole, at commit(), or not at all.
class SafetensorsWriter {
 public:
  /// Takes names, types and shapes; offsets are worked out in the order given.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> tensors,
                    const SafetensorsMetadata& metadata = {});

  /// The bytes of the next tensor, all of them.
  void append(std::string_view bytes);
  /// Throws Error unless every tensor was appended.
  void commit();

 private:
  std::vector<SafetensorsEntry> tensors_;
  size_t next_ = 0;
  AtomicFile file_;
};

/// The tensors of a model in one file or several: opens a .safetensors file, a model.safetensors.index.json
/// with the shards it names, or a folder that holds either. Throws InputError that names the file that is
/// missing or wrong, the tensor that the index misplaces, or the one that two shards hold.
std::vector<SafetensorsFile> open_safetensors(const std::string& path);

}  // namespace distca
