#include "sim/timeline.h"

#include <fmt/format.h>

#include <iterator>
#include <set>

namespace distca {
namespace {

enum Thread { kComputeThread, kCollectiveThread, kExchangeThread };
constexpr const char* kThreadNames[] = {"compute", "tensor parallel", "exchange"};

Thread thread_of(EventKind kind) {
  if (kind == EventKind::kLinear || kind == EventKind::kAttention) return kComputeThread;
  return kind == EventKind::kTensorParallel ? kCollectiveThread : kExchangeThread;
}

}  // namespace

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::kLinear:
      return "linear";
    case EventKind::kTensorParallel:
      return "tensor parallel";
    case EventKind::kAttention:
      return "attention";
    case EventKind::kDispatch:
      return "dispatch";
    case EventKind::kCollect:
      return "collect";
    case EventKind::kGather:
      break;
  }
  return "gather";
}

std::string chrome_trace(const std::vector<TimelineEvent>& events) {
  std::string text = "{\"traceEvents\": [\n";
  auto out = std::back_inserter(text);
  std::set<int32_t> ranks;
  for (const TimelineEvent& event : events) ranks.insert(event.rank);
  for (const int32_t rank : ranks) {
    fmt::format_to(
        out, R"({{"name": "process_name", "ph": "M", "pid": {0}, "args": {{"name": "rank {0}"}}}},)", rank);
    text += '\n';
    for (int thread = 0; thread < 3; ++thread) {
      fmt::format_to(
          out, R"({{"name": "thread_name", "ph": "M", "pid": {}, "tid": {}, "args": {{"name": "{}"}}}},)",
          rank, thread, kThreadNames[thread]);
      text += '\n';
    }
  }
  for (const TimelineEvent& event : events) {
    fmt::format_to(
        out,
        R"({{"name": "{}{}", "ph": "X", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": )"
        R"({{"layer": {}, "nano_batch": {}}}}},)",
        name_of(event.kind), event.backward ? " backward" : "", event.rank, int{thread_of(event.kind)},
        1e6 * event.begin, 1e6 * event.seconds, event.layer, event.part);
    text += '\n';
  }
  if (text.ends_with(",\n")) text.resize(text.size() - 2);
  text += "\n]}\n";
  return text;
}

}  // namespace distca
