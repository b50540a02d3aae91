#include "train/indexed_dataset.h"

#include "fuzz.h"

// The first two bytes are the length of the .bin file, the rest is the .idx file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return distca::fuzz(data, size, [](std::string_view bytes) {
    if (bytes.size() < 2) return;
    const int64_t bin_bytes = static_cast<uint8_t>(bytes[0]) + 256 * static_cast<uint8_t>(bytes[1]);
    const distca::DatasetIndex index(bytes.substr(2), bin_bytes, "input");
    const int64_t size = distca::token_bytes(index.type());
    for (int64_t i = 0; i < index.documents(); ++i) {
      int64_t tokens = 0;
      for (int64_t k = index.first_sequence(i); k < index.first_sequence(i + 1); ++k) {
        tokens += index.sequence_length(k);
        const int64_t end = index.sequence_pointer(k) + index.sequence_length(k) * size;
        if (end > bin_bytes) __builtin_trap();
      }
      if (tokens != index.document_length(i)) __builtin_trap();
    }
  });
}
