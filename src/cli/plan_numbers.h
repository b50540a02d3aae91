// Numbers on command lines, read strictly: nothing is clamped, rounded or left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class Validator;
}

namespace distca {

/// Accepts whole numbers from `least` to `most`.
CLI::Validator whole_number(int64_t least, int64_t most);

/// The finite numbers of "A,B,…"; none for an empty text. Throws InputError that names `option` and the
/// element.
std::vector<double> parse_numbers(const std::string& option, const std::string& text);

}  // namespace distca
