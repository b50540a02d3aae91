// Log lines on standard error: `level: message`, one line each, whole even when several threads write.
#pragma once

#include <string>

#include "base/check.h"

namespace distca {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Lines below `level` are dropped. The default is kInfo.
void set_log_level(LogLevel level);

void log_line(LogLevel level, const std::string& message);

template <typename... Values>
void log_info(std::string_view pattern, const Values&... values) {
  log_line(LogLevel::kInfo, format(pattern, values...));
}

template <typename... Values>
void log_warning(std::string_view pattern, const Values&... values) {
  log_line(LogLevel::kWarning, format(pattern, values...));
}

template <typename... Values>
void log_error(std::string_view pattern, const Values&... values) {
  log_line(LogLevel::kError, format(pattern, values...));
}

}  // namespace distca
