#include "train/config.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return distca::fuzz(data, size, [](std::string_view bytes) { distca::parse_config(bytes, "input"); });
}
