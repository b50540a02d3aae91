#include "cli/plan_numbers.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace distca {

CLI::Validator whole_number(int64_t least, int64_t most) {
  const std::string range = format("{} to {}", least, most);
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        int64_t value = 0;
        const char* last = text.data() + text.size();
        const auto end = std::from_chars(text.data(), last, value);
        const bool right = end.ec == std::errc() && end.ptr == last && value >= least && value <= most;
        return right ? "" : format("{} is not a whole number from {}", text, range);
      },
      range);
}

std::vector<double> parse_numbers(const std::string& option, const std::string& text) {
  std::vector<double> values;
  if (text.empty()) return values;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string element = text.substr(begin, end - begin);
    DISTCA_CHECK_INPUT(!element.empty(), "{} '{}': number {} is empty", option, text, values.size() + 1);
    const char* last = element.data() + element.size();
    double value = 0;
    const auto read = std::from_chars(element.data(), last, value);
    DISTCA_CHECK_INPUT(read.ec == std::errc() && read.ptr == last && std::isfinite(value),
                       "{} '{}': '{}' is not a finite number", option, text, element);
    values.push_back(value);
    begin = end + 1;
  }
  return values;
}

}  // namespace distca
