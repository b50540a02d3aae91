// What a rank did when: spans of work and of waiting on the rank's clock, for timelines and for the sums that
// end a run. A log that is off costs a comparison where something would be recorded. Names and phases are
// texts that live as long as the program.
//
//   SpanLog spans([&] { return fabric.now(); });
//   spans.start();
//   spans.place = {.layer = 3, .nano_batch = 1, .phase = "forward"};
//   { const SpanTimer timer(&spans, WorkKind::kAttention, "attend"); … }
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace distca {

/// Context-independent layers, core attention, rows gathered for exchanges and put in order, partial results
/// merged, exposed waits, the optimizer, waits of a pipeline stage that has nothing to do, messages under
/// way, planning. The last two go on beside the others.
enum class WorkKind : uint8_t {
  kCi,
  kAttention,
  kPack,
  kMerge,
  kWait,
  kOptimizer,
  kBubble,
  kCommunication,
  kPlan,
};
inline constexpr size_t kWorkKinds = 9;

/// "ci", "attention", "pack", "merge", "wait", "optimizer", "bubble", "communication", "plan".
const char* name_of(WorkKind kind);

/// What the work is for; -1 and "" where that means nothing.
struct WorkPlace {
  int64_t step = -1;
  int32_t layer = -1, nano_batch = -1, micro_batch = -1;
  const char* phase = "";  // "forward", "backward"
  bool idle = false;       // a stage without a micro-batch: its waits are bubbles
};

using WorkSeconds = std::array<double, kWorkKinds>;  // by kind

struct WorkSpan {
  WorkKind kind = WorkKind::kCi;
  const char* name = "";
  WorkPlace place;
  double begin = 0, end = 0;  // seconds on the rank's clock
  int64_t bytes = -1;         // sent; -1 where that means nothing
  int32_t peer = -1;          // the one whose message came last
};

/// Used by the rank's own thread.
class SpanLog {
 public:
  explicit SpanLog(std::function<double()> now) : now_(std::move(now)) {}

  bool on() const { return on_; }
  /// From here on, adds up seconds, and with `keep_spans` keeps every span.
  void start(bool keep_spans = true) {
    on_ = true;
    keeps_spans_ = keep_spans;
  }
  void stop() { on_ = false; }

  double now() const { return now_(); }

  /// Adds a span that ended before, at `place` or where given. What lies inside the scope of a SpanTimer
  /// counts for its own kind, not for that timer's.
  void add(const WorkSpan& span);
  void add(WorkKind kind, const char* name, double begin, double end) {
    if (on_) add({kind, name, place, begin, end});
  }
  /// A wait at `span.place`: exposed, or a bubble.
  void add_wait(const char* name, double begin, double end, int32_t peer = -1) {
    if (on_) add({place.idle ? WorkKind::kBubble : WorkKind::kWait, name, place, begin, end, -1, peer});
  }

  const std::vector<WorkSpan>& spans() const { return spans_; }
  void clear() { spans_.clear(); }
  /// Since the log was made, or was last told to forget them.
  const WorkSeconds& seconds() const { return seconds_; }
  void forget_seconds() { seconds_ = {}; }

  WorkPlace place;  // of what is recorded next

 private:
  friend class SpanTimer;

  std::function<double()> now_;
  bool on_ = false, keeps_spans_ = false;
  std::vector<WorkSpan> spans_;
  WorkSeconds seconds_ = {};
  double inside_ = 0;  // counted so far in the scope of the innermost timer
};

/// A span from here to the end of the scope.
class SpanTimer {
 public:
  /// `log` may be null: then nothing is recorded.
  SpanTimer(SpanLog* log, WorkKind kind, const char* name)
      : log_(log != nullptr && log->on() ? log : nullptr), kind_(kind), name_(name), range_(ranges_.begin) {
    if (range_ != nullptr) range_(name);
    if (log_ == nullptr) return;
    begin_ = log_->now();
    inside_before_ = std::exchange(log_->inside_, 0);
  }
  ~SpanTimer();
  SpanTimer(const SpanTimer&) = delete;
  SpanTimer& operator=(const SpanTimer&) = delete;

  /// From now on a timer calls `begin` with its name where it begins and `end` where it ends, on its thread,
  /// whether or not a log is on: ranges in the pictures of somebody else's profiler. Call it before other
  /// threads have timers.
  static void show_ranges(void (*begin)(const char* name), void (*end)()) { ranges_ = {begin, end}; }

 private:
  struct Ranges {
    void (*begin)(const char*);
    void (*end)();
  };
  inline static Ranges ranges_ = {};

  SpanLog* log_;
  WorkKind kind_;
  const char* name_;
  void (*range_)(const char*);  // null where none was begun
  double begin_ = 0, inside_before_ = 0;
};

}  // namespace distca
