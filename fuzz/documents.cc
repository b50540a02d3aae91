#include "plan/layout.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (double scale : {1.0, 0.125}) {
    distca::fuzz(data, size, [scale](std::string_view bytes) {
      const distca::Layout layout = distca::pack_documents(distca::parse_documents(bytes, "input", scale));
      int64_t tokens = 0;
      for (const distca::Shard& shard : layout.shards) tokens += shard.tokens.end - shard.tokens.begin;
      if (tokens != layout.tokens()) __builtin_trap();
    });
  }
  return 0;
}
