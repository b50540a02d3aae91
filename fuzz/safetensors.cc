#include "model/safetensors.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return distca::fuzz(data, size, [](std::string_view bytes) {
    const distca::SafetensorsHeader header = distca::parse_safetensors(bytes, "input");
    int64_t sum = 0;
    for (const distca::SafetensorsEntry& entry : header.tensors) {
      for (int64_t i = entry.begin; i < entry.end; ++i)
        sum += bytes[static_cast<size_t>(header.data_begin + i)];
    }
    static volatile int64_t sink;
    sink = sum;
  });
}
