#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/check.h"

namespace distca {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

/// Closes on every way out of a function.
struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

std::string reason() {
  return std::strerror(errno);
}

/// A rename is on disk only once its folder is.
void sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const Descriptor folder{::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.value >= 0) ::fsync(folder.value);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  DISTCA_CHECK_INPUT(file.value >= 0, "{}: can't be opened: {}", path, reason());
  struct stat status {};
  DISTCA_CHECK_INPUT(::fstat(file.value, &status) == 0 && S_ISREG(status.st_mode),
                     "{}: is not an ordinary file", path);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
  DISTCA_CHECK_INPUT(data != MAP_FAILED, "{}: can't be mapped into memory: {}", path, reason());
  data_ = static_cast<const char*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  DISTCA_CHECK(file_ >= 0, "{}: can't be created: {}", path_, reason());
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  DISTCA_CHECK(file_ >= 0, "{}: is already complete", path_);
  written_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kBufferBytes - buffer_.size());
    buffer_.append(part);
    bytes.remove_prefix(part.size());
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void AtomicFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t count = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    DISTCA_CHECK(count > 0, "{}: can't be written: {}", path_, reason());
    done += static_cast<size_t>(count);
  }
  buffer_.clear();
}

void AtomicFile::sync() {
  DISTCA_CHECK(file_ >= 0, "{}: is already complete", path_);
  flush();
  DISTCA_CHECK(::fsync(file_) == 0, "{}: can't be written: {}", path_, reason());
}

void AtomicFile::commit() {
  sync();
  DISTCA_CHECK(::close(std::exchange(file_, -1)) == 0, "{}: can't be written: {}", path_, reason());
  DISTCA_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, "{}: can't be renamed to {}: {}", temporary_,
               path_, reason());
  sync_folder_of(path_);
}

void check_can_write(const std::string& path) {
  struct stat status {};
  DISTCA_CHECK_INPUT(!path.empty(), "an output's path is empty");
  if (::stat(path.c_str(), &status) == 0) {
    DISTCA_CHECK_INPUT(!S_ISDIR(status.st_mode), "{}: can't be written: it is a folder", path);
    if (!S_ISREG(status.st_mode)) return;
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const bool usable = ::stat(folder.c_str(), &status) == 0 && ::access(folder.c_str(), W_OK) == 0;
  DISTCA_CHECK_INPUT(usable, "{}: can't be written: its folder {}: {}", path, folder, reason());
  DISTCA_CHECK_INPUT(S_ISDIR(status.st_mode), "{}: can't be written: {} is no folder", path, folder);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    std::ofstream device(path, std::ios::binary);
    device << text << std::flush;
    DISTCA_CHECK(device.good(), "{}: can't be written: {}", path, reason());
    return;
  }
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace distca
