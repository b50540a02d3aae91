// For tests: an NCCL that fails on purpose, around one that works.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/cpu_device.h"
#include "comm/nccl_api.h"

namespace distca::testing {

/// Ranks are those of the job. All are optional.
struct NcclFaults {
  /// Called before a function of the library, in the rank's thread, with its name as NcclApi has it. What
  /// isn't kSuccess is returned in its place.
  std::function<NcclResult(int32_t rank, const std::string& function)> before;
  /// Seconds that the device of `rank` takes to begin an operation; -1: it never does. Where this is set,
  /// calls return before the others have called, as with the real NCCL: it is the stream that waits.
  std::function<double(int32_t rank)> launch;
  /// What the communicators of `rank` report while `inner` is well.
  std::function<NcclResult(int32_t rank)> report;
};

/// `device` is the one that `inner` moves memory on. Each rank must be one thread.
std::shared_ptr<NcclApi> make_faulty_nccl(std::shared_ptr<NcclApi> inner, std::shared_ptr<CpuDevice> device,
                                          NcclFaults faults);

}  // namespace distca::testing
