// What every fuzz target does with its input: hand it to a parser, for which a refusal is a right answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace distca {

/// Any other exception, sanitizer report or hang is a finding.
template <typename Parse>
int fuzz(const uint8_t* data, size_t size, const Parse& parse) {
  try {
    parse(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const InputError&) {
  }
  return 0;
}

}  // namespace distca
