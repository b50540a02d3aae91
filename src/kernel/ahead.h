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

  void clear() { next_ = count_ = 0; }

  void add(const void* row) { rows_[count_++] = static_cast<const char*>(row); }

  /// The rows will be fetched in about so many calls of fetch().
  void spread(int64_t calls) { step_ = (count_ + calls - 1) / calls; }

  void fetch() {
    const int64_t end = std::min(count_, next_ + step_);
    for (; next_ < end; ++next_) {
      for (int64_t at = 0; at < row_bytes_; at += 64) __builtin_prefetch(rows_[next_] + at, 0, 2);
    }
  }

 private:
  const char** rows_ = nullptr;
  int64_t next_ = 0, count_ = 0, step_ = 0, row_bytes_ = 0;
};

}  // namespace distca
