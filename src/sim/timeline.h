// Streams that do one thing after the other: one of compute and one of exchanges a rank. Work is handed to
// each in the order of its program, as to a GPU's streams, so an event begins when its stream is free and
// what it needs is there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace distca {

enum class Stream : uint8_t { kCompute, kExchange };
inline constexpr size_t kStreams = 2;

enum class EventKind : uint8_t { kLinear, kTensorParallel, kAttention, kDispatch, kCollect, kGather };
const char* name_of(EventKind kind);

struct TimelineEvent {
  int32_t rank = 0;
  Stream stream = Stream::kCompute;
  EventKind kind = EventKind::kLinear;
  bool backward = false;
  int16_t part = 0;  // nano-batch of the step
  int32_t layer = 0;
  double begin = 0, seconds = 0;
};

class Timeline {
 public:
  Timeline(int64_t ranks, bool record)
      : record_(record),
        free_(static_cast<size_t>(ranks) * kStreams, 0.0),
        busy_(static_cast<size_t>(ranks), 0.0) {}

  /// Runs `event` (whose begin is ignored) as soon as its stream is free and `ready` has passed; returns its
  /// end.
  double run(TimelineEvent event, double ready) {
    double& free = free_[static_cast<size_t>(event.rank) * kStreams + static_cast<size_t>(event.stream)];
    event.begin = std::max(free, ready);
    free = event.begin + event.seconds;
    if (event.kind <= EventKind::kAttention) {
      busy_[static_cast<size_t>(event.rank)] += event.seconds;
    }
    if (record_ && event.seconds > 0) events_.push_back(event);
    return free;
  }

  double free_at(int32_t rank, Stream stream) const {
    return free_[static_cast<size_t>(rank) * kStreams + static_cast<size_t>(stream)];
  }
  /// When the last stream ends.
  double end() const { return *std::max_element(free_.begin(), free_.end()); }
  /// Seconds each rank has computed, collectives of tensor parallelism included.
  const std::vector<double>& busy() const { return busy_; }
  const std::vector<TimelineEvent>& events() const { return events_; }

 private:
  bool record_;
  std::vector<double> free_, busy_;
  std::vector<TimelineEvent> events_;
};

/// The Chrome trace of a timeline (opens in Perfetto): a process a rank, threads for compute, collectives
/// inside the node and exchanges.
std::string chrome_trace(const std::vector<TimelineEvent>& events);

}  // namespace distca
