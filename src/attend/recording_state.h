// What the parts of the recording device share: its logs, the streams that threads work on, and which memory
// is its own.
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "attend/recording_device.h"

namespace distca::testing {

/// What a graph does when it runs, one operation after the other.
using GraphCalls = std::vector<std::function<void()>>;

struct DeviceState {
  std::atomic<StreamLog*> log{nullptr};
  std::atomic<int64_t> streams{1};           // the first is the default one
  std::atomic<GraphCalls*> graph{nullptr};   // where operations go instead of being done
  std::atomic<c10::StreamId> graph_home{0};  // the stream that memory allocated meanwhile belongs to
  std::set<const void*> graph_memory;        // that memory
};

/// Which memory is the devices'.
class Memory {
 public:
  void add(const void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[static_cast<const char*>(data)] = bytes;
  }
  void remove(const void* data) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(static_cast<const char*>(data));
  }
  bool holds(const void* pointer) {
    const auto* at = static_cast<const char*>(pointer);
    const std::lock_guard lock(mutex_);
    const auto next = ranges_.upper_bound(at);
    return next != ranges_.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }

 private:
  std::mutex mutex_;
  std::map<const char*, size_t> ranges_;  // bytes from each address
};

struct RecordingState {
  std::array<DeviceState, kRecordingDevices> devices;
  std::atomic<int64_t> events{0};
  Memory memory;
};

/// Lives as long as the process: tensors may outlive what is destroyed at its end.
RecordingState& recording_state();

/// The calling thread's stream on each device.
extern thread_local std::array<c10::StreamId, kRecordingDevices> current_streams;

void register_recording_graphs();

void add_to_log(c10::DeviceIndex device, StreamEntry entry);

}  // namespace distca::testing
