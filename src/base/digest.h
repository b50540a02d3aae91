// Digests as they are shown everywhere: in messages, plan dumps and metrics.
#pragma once

#include <cstdint>
#include <string>

namespace distca {

/// 16 hexadecimal digits.
std::string hex_digest(uint64_t digest);

/// The value of such a text. Throws InputError when it isn't one.
uint64_t parse_digest(const std::string& text);

}  // namespace distca
