// What a run writes is checked before its first step: that the places can be written, and that nothing of
// somebody else's stands there. Errors begin with the `key` or option that named the place.
#pragma once

#include <string>

namespace distca {

/// Throws InputError unless `path` is free or an ordinary file, in a folder that is there. Writes nothing.
void check_output_path(const std::string& key, const std::string& path);

/// Throws InputError with the system's reason unless a file can be made beside `path`.
void probe_output(const std::string& key, const std::string& path);

/// Throws InputError with the system's reason unless the folder `dir` can be made, or is there, and files can
/// be made in it. Leaves nothing behind.
void probe_folder(const std::string& key, const std::string& dir);

/// Throws InputError when a run may not write its metrics to `path`: an existing file with content is taken
/// over by a run that `resumes` alone, and only when its lines are those of a metrics file.
void check_metrics(const std::string& path, bool resumes);

}  // namespace distca
