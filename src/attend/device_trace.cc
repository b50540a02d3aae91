#include "attend/device_trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>

#include "attend/device.h"
#include "base/check.h"

namespace distca {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

DeviceTrace::DeviceTrace(at::Device device) : device_(device) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {device.is_cuda() ? ActivityType::CUDA : ActivityType::CPU};
  synchronize(device);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION});
}

DeviceTrace::~DeviceTrace() {
  if (on_) profiler::disableProfiler();
}

void DeviceTrace::write(const std::string& path) {
  DISTCA_CHECK(on_, "the trace of the device was written before {}", path);
  synchronize(device_);
  on_ = false;
  profiler::disableProfiler()->save(path);
}

}  // namespace distca
