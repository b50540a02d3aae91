// Outputs of a command that works for a while: a path that can't be written is said before the work, not
// after it.
#pragma once

#include <string>

namespace distca {

/// Throws InputError that names `option` when the folder of `path` isn't there or can't be written, or when
/// `path` is itself a folder. "" (no output) and "-" (standard output) pass.
void check_output_path(const std::string& option, const std::string& path);

}  // namespace distca
