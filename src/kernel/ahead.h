// Rows that will be needed soon, fetched into the cache a few at a time between register tiles: where
// documents are short, reading inputs and writing results takes as long as computing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace distca {

class Ahead {
 public:
  /// `memory` has room for all rows that add() will get.
  void begin(const char** memory, int64_t row_bytes) {
    rows_ = memory;
    row_bytes_ = row_bytes;
    clear();
  }

  void clear() { next_ = count_ = at_ = 0; }

  void add(const void* row) { rows_[count_++] = static_cast<const char*>(row); }

  /// The rows will be fetched in about so many calls of fetch(): more lines at once than a core has buffers
  /// for would hold up its own loads.
  void spread(int64_t calls) {
    const int64_t lines = count_ * ((row_bytes_ + kLine - 1) / kLine);
    step_ = (lines + calls - 1) / std::max<int64_t>(1, calls);
  }

  void fetch() {
    for (int64_t i = 0; i < step_ && next_ < count_; ++i) {
      __builtin_prefetch(rows_[next_] + at_, 0, 2);
      at_ += kLine;
      if (at_ >= row_bytes_) ++next_, at_ = 0;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const char** rows_ = nullptr;
  int64_t next_ = 0, count_ = 0, at_ = 0, step_ = 0, row_bytes_ = 0;
};

}  // namespace distca
