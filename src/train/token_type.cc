#include <iterator>

#include "base/check.h"
#include "train/indexed_dataset.h"

namespace distca {
namespace {

struct TypeFacts {
  TokenType type;
  const char* name;
  int64_t bytes;
};

constexpr TypeFacts kTypes[] = {
    {TokenType::kUInt8, "uint8", 1},     {TokenType::kInt8, "int8", 1},
    {TokenType::kInt16, "int16", 2},     {TokenType::kInt32, "int32", 4},
    {TokenType::kInt64, "int64", 8},     {TokenType::kFloat64, "float64", 8},
    {TokenType::kFloat32, "float32", 4}, {TokenType::kUInt16, "uint16", 2},
};

/// The files' codes count from 1 in the order of the table.
const TypeFacts& facts(TokenType type) {
  const auto code = static_cast<size_t>(type);
  DISTCA_CHECK(code >= 1 && code <= std::size(kTypes), "{} is no token type's code", code);
  return kTypes[code - 1];
}

}  // namespace

int64_t token_bytes(TokenType type) {
  return facts(type).bytes;
}

const char* token_type_name(TokenType type) {
  return facts(type).name;
}

TokenType find_token_type(std::string_view name) {
  for (const TypeFacts& each : kTypes) {
    if (each.name == name) return each.type;
  }
  throw InputError(format(
      "token type '{}' is not one of uint8, int8, int16, int32, int64, float64, float32, uint16", name));
}

TokenType token_type_for(int64_t vocabulary) {
  return vocabulary < 65500 ? TokenType::kUInt16 : TokenType::kInt32;
}

}  // namespace distca
