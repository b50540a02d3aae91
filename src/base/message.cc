#include "base/message.h"

#include <new>

#include "base/check.h"

namespace distca {

std::string message_of(const std::exception& error) {
  const std::string message = error.what();
  if (dynamic_cast<const Error*>(&error) != nullptr) return message;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return message.substr(0, message.find('\n'));
}

}  // namespace distca
