// Scratch memory of one thread: grown when a call needs more than any call before, never shrunk, so that a
// warmed-up kernel allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace distca {

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The calling thread's own.
  static Arena& of_thread();

  /// Returns lay_out(*this), whose take() calls get memory that lives until the next call of place().
  /// lay_out runs twice: to count, then to hand out.
  template <typename LayOut>
  auto place(const LayOut& lay_out) {
    used_ = 0;
    counting_ = true;
    lay_out(*this);
    reserve(used_);
    used_ = 0;
    counting_ = false;
    return lay_out(*this);
  }

  /// `count` elements, aligned to cache lines, their contents undefined. For lay_out functions.
  template <typename T>
  T* take(int64_t count) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return counting_ ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }

  size_t capacity() const { return capacity_; }

 private:
  static constexpr size_t kAlignment = 64;

  void reserve(size_t bytes);

  std::byte* memory_ = nullptr;
  size_t capacity_ = 0, used_ = 0;
  bool counting_ = false;
};

}  // namespace distca
