// Errors and checks. A failed check throws a distca::Error whose message says what was wrong with which
// input. Stands on std alone, so that it can be used beside PyTorch's headers, which bring their own fmt.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace distca {

/// A failure while running: a peer that doesn't answer, a disk that is full. Programs exit with 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Input that can't be right: a file, an option, a configuration. Programs exit with 2.
class InputError : public Error {
 public:
  using Error::Error;
};

/// `pattern` with each `{}` replaced by the next of `values`; values left over are dropped.
std::string substitute(std::string_view pattern, const std::vector<std::string>& values);

/// The text of one value as an error message shows it.
template <typename T>
std::string text(const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    return std::string(std::string_view(value));
  } else {
    std::ostringstream out;
    out << value;
    return out.str();
  }
}

template <typename... Values>
std::string format(std::string_view pattern, const Values&... values) {
  return substitute(pattern, {text(values)...});
}

}  // namespace distca

/// Throws `Error` with the formatted message unless `condition` holds: DISTCA_CHECK(n > 0, "n is {}", n).
#define DISTCA_CHECK(condition, ...)                        \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      throw ::distca::Error(::distca::format(__VA_ARGS__)); \
  } while (false)

/// The same for what a user handed in: throws `InputError`, which programs answer with exit code 2.
#define DISTCA_CHECK_INPUT(condition, ...)                       \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      throw ::distca::InputError(::distca::format(__VA_ARGS__)); \
  } while (false)
