#include "base/json.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return distca::fuzz(data, size, [](std::string_view bytes) {
    const std::string text = distca::parse_json(bytes, "input").dump();
    if (distca::parse_json(text, "again").dump() != text) __builtin_trap();
  });
}
