// Random numbers for sampling, search and tests.
#pragma once

#include <cstdint>
#include <random>

namespace distca {

/// Random numbers that are the same on every machine: std's distributions aren't.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// A whole number in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  /// An index below `count`.
  size_t below(size_t count) { return static_cast<size_t>(engine_() % count); }
  /// A number in [0, 1).
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace distca
