#include "attend/recording_state.h"

#include <utility>

namespace distca::testing {

thread_local std::array<c10::StreamId, kRecordingDevices> current_streams{};

RecordingState& recording_state() {
  static RecordingState& state = *new RecordingState;
  return state;
}

void add_to_log(c10::DeviceIndex device, StreamEntry entry) {
  if (StreamLog* log = recording_state().devices[static_cast<size_t>(device)].log) log->add(std::move(entry));
}

void record_to(at::Device device, StreamLog* log) {
  recording_state().devices[static_cast<size_t>(device.index())].log = log;
}

}  // namespace distca::testing
