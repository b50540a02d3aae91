#include "base/check.h"

namespace distca {

std::string substitute(std::string_view pattern, const std::vector<std::string>& values) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool hole = pattern[i] == '{' && i + 1 < pattern.size() && pattern[i + 1] == '}';
    if (hole && next < values.size()) {
      out += values[next++];
      ++i;
    } else {
      out += pattern[i];
    }
  }
  return out;
}

}  // namespace distca
