#include "base/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/json.h"

namespace distca {
namespace {

std::string quoted(std::string_view text) {
  return Json(text).dump();
}

// Threads of a rank's process in the trace. The second and later communication lanes follow the planner.
constexpr int32_t kComputeLane = 0, kCommunicationLane = 1, kPlannerLane = 2;

/// Which communication lane each message is on: the first that is free when it begins.
class MessageLanes {
 public:
  int32_t take(double begin, double end) {
    size_t lane = 0;
    while (lane < free_at_.size() && free_at_[lane] > begin) ++lane;
    if (lane == free_at_.size()) free_at_.push_back(0);
    free_at_[lane] = end;
    return lane == 0 ? kCommunicationLane : kPlannerLane + static_cast<int32_t>(lane);
  }
  size_t count() const { return free_at_.size(); }

 private:
  std::vector<double> free_at_;
};

std::vector<TraceArgument> arguments_of(const WorkSpan& span) {
  std::vector<TraceArgument> out = {{"kind", 0, name_of(span.kind)}};
  if (*span.place.phase != '\0') out.push_back({"phase", 0, span.place.phase});
  const std::pair<const char*, int64_t> numbers[] = {{"step", span.place.step},
                                                     {"micro_batch", span.place.micro_batch},
                                                     {"nano_batch", span.place.nano_batch},
                                                     {"layer", span.place.layer},
                                                     {"bytes", span.bytes},
                                                     {"peer", span.peer}};
  for (const auto& [key, number] : numbers) {
    if (number >= 0) out.push_back({key, number});
  }
  return out;
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

std::string trace_events(int32_t rank, const std::vector<WorkSpan>& spans, double zero) {
  ChromeTrace trace;
  trace.name_rank(rank);
  trace.name_thread(rank, kComputeLane, "compute");
  trace.name_thread(rank, kCommunicationLane, "communication");
  trace.name_thread(rank, kPlannerLane, "planner");
  std::vector<const WorkSpan*> in_order;
  for (const WorkSpan& span : spans) in_order.push_back(&span);
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const WorkSpan* a, const WorkSpan* b) { return a->begin < b->begin; });
  MessageLanes lanes;
  for (const WorkSpan* span : in_order) {
    int32_t lane = kComputeLane;
    if (span->kind == WorkKind::kPlan) lane = kPlannerLane;
    if (span->kind == WorkKind::kCommunication) lane = lanes.take(span->begin, span->end);
    trace.add({span->name, rank, lane, span->begin - zero, span->end - span->begin}, arguments_of(*span));
  }
  for (size_t lane = 1; lane < lanes.count(); ++lane) {
    trace.name_thread(rank, kPlannerLane + static_cast<int32_t>(lane),
                      "communication " + std::to_string(lane + 1));
  }
  return trace.events();
}

}  // namespace distca
