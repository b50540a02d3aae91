// The shuffled order of one epoch, as a function: which document comes i-th. Nothing is stored, so a data set
// of any size can be entered anywhere, and the order is the same on every compiler and machine.
#pragma once

#include <cstdint>

namespace distca {

/// A pseudo-random bijection of [0, count): a Feistel network over the next power of four, walked until it
/// lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, section 3).
class EpochOrder {
 public:
  EpochOrder(int64_t count, uint64_t seed, int64_t epoch);

  /// The i-th document of the epoch, i in [0, count).
  int64_t operator[](int64_t i) const;

 private:
  static constexpr int kRounds = 6;

  uint64_t permute(uint64_t value) const;

  uint64_t count_, half_bits_ = 0;
  uint64_t keys_[kRounds];
};

/// The mixing function of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit words.
uint64_t mix64(uint64_t value);

}  // namespace distca
