// JSON: nlohmann's value type, with reading and writing whose errors name the file and the place.
// Include it from .cc files only: the header behind it is large.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace distca {

/// Objects keep the order in which their keys were set.
using Json = nlohmann::ordered_json;

/// The value that `text` holds. `origin` names it in errors. Throws InputError with line and column.
Json parse_json(std::string_view text, const std::string& origin);

/// All of a file. Throws InputError that names the file when it can't be read.
std::string read_text(const std::string& path);

/// The value in a file. Throws InputError that names the file when it can't be read or isn't JSON.
Json read_json(const std::string& path);

/// Writes `value` to `path`, or to standard output when path is "-". Throws Error when it can't.
void write_json(const Json& value, const std::string& path, int indent = 2);

}  // namespace distca
