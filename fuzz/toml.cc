#include "train/config.h"

#include <sstream>
#include <string>
#include <vector>

#include "fuzz.h"

// The file, and behind a NUL what `--set` gives, a line each.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return distca::fuzz(data, size, [](std::string_view bytes) {
    const size_t end = bytes.find('\0');
    std::istringstream rest(end == bytes.npos ? "" : std::string(bytes.substr(end + 1)));
    std::vector<std::string> overrides;
    for (std::string line; std::getline(rest, line);) overrides.push_back(line);
    distca::parse_config(bytes.substr(0, end), "input", overrides);
  });
}
