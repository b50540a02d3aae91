#include "comm/cuda/nccl_rank.h"

#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "base/message.h"
#include "comm/cuda/cuda_device.h"
#include "comm/cuda/nccl_library.h"
#include "comm/cuda/tcp_store.h"
#include "comm/report.h"

namespace distca {
namespace {

/// For the others to read why, from the table that this process may keep.
constexpr std::chrono::seconds kLastWords{2};
constexpr double kLeaveSeconds = 10;

NcclJob job_of(const LaunchedRank& launched, const NcclOptions& options) {
  const int32_t device = cuda_device_count() == 1 ? 0 : launched.local_rank;
  NcclJob job;
  job.device = make_cuda_device(device);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  job.library = make_nccl_library(device);
  job.store = make_tcp_store(launched, options.timeout_s);
  job.rank = launched.rank;
  job.world_size = launched.world_size;
  job.options = options;
  return job;
}

/// The process that keeps the table stays until the others no longer look at it.
void leave(const LaunchedRank& launched, Store& store) {
  const double last = wall_seconds() + kLeaveSeconds;
  store.add("ranks that have left", 1);
  if (launched.rank > 0 || launched.is_served) return;
  while (store.add("ranks that have left", 0) < launched.world_size && wall_seconds() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

int run_nccl_rank(const LaunchedRank& launched, const NcclOptions& options,
                  const std::function<void(Fabric&)>& body) {
  std::unique_ptr<Fabric> fabric;
  // Not through destructors: a device that hangs may keep them waiting.
  const auto end_job = [&](const std::string& message, int code) {
    if (fabric) fabric->abort(message);
    std::fflush(nullptr);
    std::fputs(("distca: " + with_rank(launched.rank, message) + "\n").c_str(), stderr);
    std::this_thread::sleep_for(kLastWords);
    std::_Exit(code);
  };
  try {
    const NcclJob job = job_of(launched, options);
    fabric = make_nccl_fabric(job);
    body(*fabric);
    fabric->barrier("the end of the job");
    fabric.reset();
    leave(launched, *job.store);
  } catch (const InputError& error) {
    end_job(error.what(), 2);
  } catch (const std::exception& error) {
    end_job(message_of(error), 1);
  } catch (...) {
    end_job("an exception that is no std::exception", 1);
  }
  return 0;
}

}  // namespace distca
