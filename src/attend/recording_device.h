// A device for tests: streams and events and no hardware. Its memory is the host's, an operation runs on the
// CPU as soon as it is given, and what each stream read, wrote and waited for goes to a log that
// comm/stream_order.h checks. PyTorch sees it as its PrivateUse1 backend, so that all code meant for any
// device runs on one that is not the CPU: tensors of both can't be mixed, and nothing of ours may look at its
// memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "comm/device.h"
#include "comm/stream_order.h"

namespace distca::testing {

inline constexpr int32_t kRecordingDevices = 16;
/// What the log says of a fabric's accesses to tensors.
inline constexpr const char* kTransfer = "a transfer";
/// And where one brings the host something, which the host waits for.
inline constexpr const char* kToHost = "a transfer to the host";

/// Device `index` of kRecordingDevices. PyTorch knows them in every program that calls this.
at::Device recording_device(int32_t index);

/// From now on the device's work goes to `log`, which must outlive it; null: nowhere.
void record_to(at::Device device, StreamLog* log);

/// The device as a Fabric sees it.
std::shared_ptr<Device> device_for_fabrics(at::Device device);

}  // namespace distca::testing
