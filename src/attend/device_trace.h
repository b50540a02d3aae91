// What a device does, kernel by kernel and copy by copy, as PyTorch's profiler records it: the device's own
// clock, where spans (base/span_log.h) have the host's.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

namespace distca {

/// From here to write() or the end, which the same thread calls. One at a time in a process, whose work on
/// all devices it records; on the CPU PyTorch's operators instead.
class DeviceTrace {
 public:
  explicit DeviceTrace(at::Device device);
  ~DeviceTrace();
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  /// Waits for the device and writes a Chrome trace. Ends the recording.
  void write(const std::string& path);

 private:
  at::Device device_;
  bool on_ = true;
};

}  // namespace distca
