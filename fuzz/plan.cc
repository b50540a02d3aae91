#include "plan/plan.h"

#include <string>

#include "fuzz.h"
#include "plan/exchange.h"

namespace {

/// `text` with the digest that its contents have, when the error says that this is what is wrong with it: so
/// the fuzzer gets past the digest.
std::string with_right_digest(std::string text, const std::string& error) {
  const std::string before = "that of its contents ";
  const size_t right = error.find(before), key = text.find("\"digest\"");
  const size_t value = key == std::string::npos ? key : text.find('"', key + 8);
  if (right == std::string::npos || value == std::string::npos || value + 17 > text.size()) return text;
  return text.replace(value + 1, 16, error.substr(right + before.size(), 16));
}

void check(std::string_view bytes) {
  const distca::Plan plan = distca::parse_plan(bytes, "input");
  if (distca::parse_plan(distca::dump_plan(plan), "again").digest() != plan.digest()) __builtin_trap();
  if (plan.servers <= 64) distca::make_exchange(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return distca::fuzz(data, size, [](std::string_view bytes) {
    try {
      check(bytes);
    } catch (const distca::InputError& error) {
      check(with_right_digest(std::string(bytes), error.what()));
    }
  });
}
