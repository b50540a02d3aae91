// Chrome trace event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show: a process a rank,
// threads for what it does side by side, bars with numbers that a click shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/span_log.h"

namespace distca {

/// A number or text that belongs to a bar.
struct TraceArgument {
  std::string_view key;
  int64_t number = 0;
  std::string_view text = {};  // where this isn't empty, instead of the number
};

struct TraceBar {
  std::string_view name;
  int32_t rank = 0, thread = 0;
  double begin = 0, seconds = 0;
};

/// Events as text. Those of several ranks can be made apart and put together.
class ChromeTrace {
 public:
  void name_rank(int32_t rank);
  void name_thread(int32_t rank, int32_t thread, std::string_view name);
  void add(const TraceBar& bar, std::span<const TraceArgument> arguments);

  /// The events so far, for whole() on another rank.
  const std::string& events() const { return events_; }

  /// The whole of a file.
  static std::string whole(std::span<const std::string> events);
  std::string whole() const { return whole({&events_, 1}); }

 private:
  std::string events_;
};

/// The events of one rank in a Chrome trace, on the lanes compute, communication and planner; messages that
/// are under way together get further communication lanes. `zero` is the time at which the trace begins.
std::string trace_events(int32_t rank, const std::vector<WorkSpan>& spans, double zero);

}  // namespace distca
