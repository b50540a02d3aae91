#include "comm/nccl_operation.h"

#include <cstring>
#include <utility>

namespace distca {

NcclResult NcclLink::locked(const std::function<NcclResult()>& call) {
  const std::lock_guard lock(mutex);
  return gone ? NcclResult::kInProgress : call();
}

std::vector<int32_t> NcclLink::peers() const {
  std::vector<int32_t> out = members;
  out.erase(out.begin() + index);
  return out;
}

NcclStaging::~NcclStaging() {
  for (const Copy& copy : copies_) {
    device_->release(copy.device);
    // What the device may still write to is left to the end of the process, which is near.
    if (idle_) device_->release_host(copy.reachable);
  }
}

void NcclStaging::replace(std::vector<NcclBuffer>& buffers) {
  for (NcclBuffer& buffer : buffers) {
    if (buffer.bytes == 0 || (!buffer.is_host && device_->holds(buffer.pointer))) continue;
    Copy copy{buffer, device_->allocate_host(buffer.bytes), nullptr};
    copy.device = device_->allocate(buffer.bytes, stream_);
    copies_.push_back(copy);
    if (buffer.read) {
      std::memcpy(copy.reachable, buffer.pointer, buffer.bytes);
      device_->copy(copy.device, copy.reachable, buffer.bytes, stream_);
    }
    buffer.pointer = copy.device;
  }
}

void NcclStaging::fetch() {
  for (const Copy& copy : copies_) {
    if (copy.host.written) device_->copy(copy.reachable, copy.device, copy.host.bytes, stream_);
  }
}

void NcclStaging::finish() {
  if (std::exchange(finished_, true)) return;
  for (const Copy& copy : copies_) {
    if (copy.host.written) std::memcpy(copy.host.pointer, copy.reachable, copy.host.bytes);
  }
}

}  // namespace distca
