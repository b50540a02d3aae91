#include "train/epoch_order.h"

#include "base/check.h"

namespace distca {

uint64_t mix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

EpochOrder::EpochOrder(int64_t count, uint64_t seed, int64_t epoch) : count_(count) {
  DISTCA_CHECK(count > 0, "an epoch needs at least one document, not {}", count);
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < count_) ++half_bits_;
  uint64_t key = mix64(mix64(seed) ^ static_cast<uint64_t>(epoch));
  for (uint64_t& round_key : keys_) round_key = key = mix64(key);
}

uint64_t EpochOrder::permute(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (mix64(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t EpochOrder::operator[](int64_t i) const {
  uint64_t value = static_cast<uint64_t>(i);
  do value = permute(value);
  while (value >= count_);
  return static_cast<int64_t>(value);
}

}  // namespace distca
