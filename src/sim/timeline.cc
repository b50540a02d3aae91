#include "sim/timeline.h"

#include <set>

#include "base/chrome_trace.h"

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
  ChromeTrace trace;
  std::set<int32_t> ranks;
  for (const TimelineEvent& event : events) ranks.insert(event.rank);
  for (const int32_t rank : ranks) {
    trace.name_rank(rank);
    for (int thread = 0; thread < 3; ++thread) trace.name_thread(rank, thread, kThreadNames[thread]);
  }
  for (const TimelineEvent& event : events) {
    const std::string name = std::string(name_of(event.kind)) + (event.backward ? " backward" : "");
    const TraceArgument arguments[] = {{"layer", event.layer}, {"nano_batch", event.part}};
    trace.add({name, event.rank, thread_of(event.kind), event.begin, event.seconds}, arguments);
  }
  return trace.whole();
}

}  // namespace distca
