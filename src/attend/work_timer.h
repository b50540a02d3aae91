// Counts a piece of work: its thread CPU time in a sum, and itself in the log of spans.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/span_log.h"

namespace distca {

/// From here to stop(), or to the end of the scope.
class WorkTimer {
 public:
  WorkTimer(double& cpu_s, SpanLog* spans, WorkKind kind, const char* name)
      : cpu_s_(cpu_s), begin_(thread_cpu_seconds()) {
    span_.emplace(spans, kind, name);
  }
  ~WorkTimer() { stop(); }
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;

  void stop() {
    if (!span_) return;
    span_.reset();
    cpu_s_ += thread_cpu_seconds() - begin_;
  }

 private:
  double& cpu_s_;
  double begin_;
  std::optional<SpanTimer> span_;
};

}  // namespace distca
