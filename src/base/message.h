// What to tell a user of an exception, on one line.
#pragma once

#include <exception>
#include <string>

namespace distca {

/// The message of an Error as it is. Of any other exception its first line, as PyTorch's go on with the
/// frames of a stack; "out of memory" for std::bad_alloc.
std::string message_of(const std::exception& error);

}  // namespace distca
