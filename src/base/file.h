// Files that are larger than one likes to copy, and files that must never be half written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace distca {

/// A file's bytes mapped read-only into memory. The file must not shrink meanwhile.
class MappedFile {
 public:
  /// Throws InputError that names the file when it can't be opened, or is no ordinary file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::string_view bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

/// A file that appears under its name whole or not at all: written beside it as `path`.tmp, and renamed when
/// it is complete and on disk. What stood there before stays until then.
class AtomicFile {
 public:
  /// Throws Error that names the file when it can't be created.
  explicit AtomicFile(std::string path);
  /// Removes what was written unless commit() was called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends. Throws Error with the system's reason (a full disk) that names the file.
  void write(std::string_view bytes);
  /// Flushes to disk, so that nothing but the rename is left for commit(): for files that appear together.
  void sync();
  /// Flushes to disk and renames. Nothing can be written afterwards.
  void commit();

  const std::string& path() const { return path_; }
  int64_t written() const { return written_; }

 private:
  void flush();

  std::string path_, temporary_, buffer_;
  int file_ = -1;
  int64_t written_ = 0;
};

/// Throws InputError that names the path and the reason unless a file can be written there: its folder must
/// exist and be writable. For outputs, before the work that they are to hold.
void check_can_write(const std::string& path);

/// `text` as the whole of a file; devices and pipes are written as they are.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace distca
