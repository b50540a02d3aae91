#include "base/digest.h"

#include <cinttypes>
#include <cstdio>

#include "base/check.h"

namespace distca {

std::string hex_digest(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, digest);
  return text;
}

uint64_t parse_digest(const std::string& text) {
  const bool digits = text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  DISTCA_CHECK_INPUT(digits, "digest '{}' is not 16 hexadecimal digits", text);
  return std::stoull(text, nullptr, 16);
}

}  // namespace distca
