// Where tensors live and work is done: the CPU, or a CUDA device where PyTorch is a CUDA build. What is asked
// of a device itself, rather than of tensors on it, stands here, so that nothing else need know which build
// this is.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/fabric.h"

namespace distca {

/// "cpu", or "cuda": the device that is current in this process, which is the first unless a rank chose its
/// own. Throws InputError that says why there is none: PyTorch is a CPU build, or the driver's reason.
at::Device device_of(const std::string& name);

/// The kind of device behind that name, whether or not there is one. Throws InputError for another name.
at::DeviceType device_type_of(const std::string& name);

/// For reports: "NVIDIA H200, 140 GiB, CUDA 13.0, NCCL 2.30.7"; "" for the CPU.
std::string describe_device(at::Device device);

/// Which device this is among those of all machines: the same for ranks that share one. 0 for the CPU.
uint64_t device_identity(at::Device device);

/// Bytes of tensors on a CUDA device that ranks of this process have there, the most at once since
/// reset_peak_bytes(): what PyTorch's allocator gave out. 0 elsewhere: attend/live_bytes.h counts there.
int64_t peak_bytes(at::Device device);
void reset_peak_bytes(at::Device device);

/// Throws InputError where ranks of that fabric can't hand each other what lies on the device.
void check_exchanges(const Fabric& fabric, at::Device device);

/// Returns when all that was started on the device is done.
void synchronize(at::Device device);

/// How long a piece of work takes: the thread's CPU time, or on a CUDA device the time between two events of
/// the current stream, which the device itself takes.
class DeviceTimer {
 public:
  explicit DeviceTimer(at::Device device);
  ~DeviceTimer();

  void start();
  /// Seconds since start(); waits for the device.
  double stop();

 private:
  struct Events;
  std::unique_ptr<Events> events_;  // null on the CPU
  double begin_ = 0;
};

double device_seconds(at::Device device, const std::function<void()>& body);

/// From now on every SpanTimer, whether or not its log is on, is an NVTX range, which NVIDIA's profilers
/// show. Nothing in a CPU build.
void show_spans_to_profilers();

}  // namespace distca
