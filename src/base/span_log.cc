#include "base/span_log.h"

namespace distca {

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
  if (range_ != nullptr) ranges_.end();
  if (log_ == nullptr) return;
  const double inside = log_->inside_;
  log_->add(kind_, name_, begin_, log_->now());
  log_->seconds_[static_cast<size_t>(kind_)] -= inside;
  log_->inside_ += inside_before_ - inside;
}

}  // namespace distca
