#include "base/chrome_trace.h"

#include <fmt/format.h>

#include <iterator>

#include "base/json.h"

namespace distca {
namespace {

std::string quoted(std::string_view text) {
  return Json(text).dump();
}

}  // namespace

void ChromeTrace::name_rank(int32_t rank) {
  events_ += fmt::format(
      "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {0}, \"args\": {{\"name\": \"rank {0}\"}}}},\n",
      rank);
}

void ChromeTrace::name_thread(int32_t rank, int32_t thread, std::string_view name) {
  events_ += fmt::format(
      "{{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": {}}}}},\n",
      rank, thread, quoted(name));
}

void ChromeTrace::add(const TraceBar& bar, std::span<const TraceArgument> arguments) {
  auto out = std::back_inserter(events_);
  fmt::format_to(out,
                 "{{\"name\": {}, \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, "
                 "\"args\": {{",
                 quoted(bar.name), bar.rank, bar.thread, 1e6 * bar.begin, 1e6 * bar.seconds);
  for (const TraceArgument& argument : arguments) {
    fmt::format_to(out, "{}{}: {}", &argument == arguments.data() ? "" : ", ", quoted(argument.key),
                   argument.text.empty() ? std::to_string(argument.number) : quoted(argument.text));
  }
  events_ += "}},\n";
}

std::string ChromeTrace::whole(std::span<const std::string> events) {
  std::string text = "{\"traceEvents\": [\n";
  for (const std::string& part : events) text += part;
  if (text.ends_with(",\n")) text.resize(text.size() - 2);
  return text + "\n]}\n";
}

}  // namespace distca
