// Outputs of a command that works for a while: a path that can't be written is said before the work, not
// after it.
#pragma once

#include <string>

namespace distca {

/// Throws InputError that names `option` when a file can't be made at `path`: see train/outputs.h. "" (no
/// output) and
/// "-" (standard output) pass.
void check_command_output(const std::string& option, const std::string& path);

}  // namespace distca
