// Conversions between bfloat16 storage and float32, and of a stored value to what sums of it are kept in.
#pragma once

#include <bit>
#include <cmath>

#include "kernel/attention.h"

namespace distca {

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

template <typename T>
Accumulator<T> load(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <typename T>
T store(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else {
    return value;
  }
}

}  // namespace distca
