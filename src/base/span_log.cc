#include "base/span_log.h"

#include <algorithm>

#include "base/chrome_trace.h"

namespace distca {
namespace {

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

const char* name_of(WorkKind kind) {
  constexpr const char* kNames[kWorkKinds] = {"ci",        "attention", "pack",          "merge", "wait",
                                              "optimizer", "bubble",    "communication", "plan"};
  return kNames[static_cast<size_t>(kind)];
}

void SpanLog::add(const WorkSpan& span) {
  if (!on_) return;
  const double seconds = span.end - span.begin;
  seconds_[static_cast<size_t>(span.kind)] += seconds;
  if (span.kind < WorkKind::kCommunication) inside_ += seconds;
  if (keeps_spans_) spans_.push_back(span);
}

SpanTimer::~SpanTimer() {
  if (log_ == nullptr) return;
  const double inside = log_->inside_;
  log_->add(kind_, name_, begin_, log_->now());
  log_->seconds_[static_cast<size_t>(kind_)] -= inside;
  log_->inside_ += inside_before_ - inside;
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
