#include "attend/device.h"

#include <torch/version.h>

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/span_log.h"

#if DISTCA_CUDA
#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvtx3/nvToolsExt.h>
#endif

namespace distca {

#if DISTCA_CUDA

namespace {

/// "13.0" of 13000.
std::string cuda_version(int version) {
  return format("{}.{}", version / 1000, version % 1000 / 10);
}

void check_cuda_device() {
  int count = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return;
  cudaGetLastError();  // so that it isn't found again by the next call
  std::string reason = error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error);
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) reason += " (no NVIDIA driver is loaded)";
  throw InputError(format("there is no CUDA device here: {}", reason));
}

}  // namespace

struct DeviceTimer::Events {
  at::cuda::CUDAEvent begin{cudaEventDefault}, end{cudaEventDefault};  // the default ones take times
};

DeviceTimer::DeviceTimer(at::Device device)
    : events_(device.is_cuda() ? std::make_unique<Events>() : nullptr) {}

void DeviceTimer::start() {
  if (!events_) {
    begin_ = thread_cpu_seconds();
    return;
  }
  events_->begin.record(c10::cuda::getCurrentCUDAStream());
}

double DeviceTimer::stop() {
  if (!events_) return thread_cpu_seconds() - begin_;
  events_->end.record(c10::cuda::getCurrentCUDAStream());
  events_->end.synchronize();
  return 1e-3 * events_->begin.elapsed_time(events_->end);
}

void synchronize(at::Device device) {
  if (device.is_cuda()) c10::cuda::device_synchronize();
}

std::string describe_device(at::Device device) {
  if (!device.is_cuda()) return "";
  cudaDeviceProp properties{};
  int runtime = 0, nccl = 0;
  DISTCA_CHECK(cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess,
               "device {} doesn't answer", device.str());
  cudaRuntimeGetVersion(&runtime);
  ncclGetVersion(&nccl);
  return format("{}, {} GiB, CUDA {}, NCCL {}.{}.{}", properties.name, properties.totalGlobalMem >> 30,
                cuda_version(runtime), nccl / 10000, nccl % 10000 / 100, nccl % 100);
}

uint64_t device_identity(at::Device device) {
  if (!device.is_cuda()) return 0;
  cudaDeviceProp properties{};
  DISTCA_CHECK(cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess,
               "device {} doesn't answer", device.str());
  uint64_t halves[2];
  static_assert(sizeof properties.uuid == sizeof halves);
  std::memcpy(halves, &properties.uuid, sizeof halves);
  return halves[0] ^ std::rotl(halves[1], 1);
}

int64_t peak_bytes(at::Device device) {
  if (!device.is_cuda()) return 0;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

void reset_peak_bytes(at::Device device) {
  if (!device.is_cuda()) return;
  at::globalContext().lazyInitDevice(at::kCUDA);  // a rank may hold nothing yet
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
}

void show_spans_to_profilers() {
  SpanTimer::show_ranges([](const char* name) { nvtxRangePushA(name); }, [] { nvtxRangePop(); });
}

#else

namespace {

void check_cuda_device() {
  throw InputError("there is no CUDA device for this program: PyTorch " TORCH_VERSION
                   " is a CPU build (make gpu-build)");
}

}  // namespace

struct DeviceTimer::Events {};

DeviceTimer::DeviceTimer(at::Device) {}

void DeviceTimer::start() {
  begin_ = thread_cpu_seconds();
}

double DeviceTimer::stop() {
  return thread_cpu_seconds() - begin_;
}

void synchronize(at::Device) {}

std::string describe_device(at::Device) {
  return "";
}

uint64_t device_identity(at::Device) {
  return 0;
}

int64_t peak_bytes(at::Device) {
  return 0;
}

void reset_peak_bytes(at::Device) {}

void show_spans_to_profilers() {}

#endif

DeviceTimer::~DeviceTimer() = default;

at::DeviceType device_type_of(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  DISTCA_CHECK_INPUT(name == "cuda", "device '{}' is none of cpu, cuda", name);
  return at::kCUDA;
}

at::Device device_of(const std::string& name) {
  if (device_type_of(name) == at::kCPU) return at::kCPU;
  check_cuda_device();
#if DISTCA_CUDA
  return {at::kCUDA, c10::cuda::current_device()};
#else
  return at::kCUDA;  // not reached
#endif
}

void check_exchanges(const Fabric& fabric, at::Device device) {
  DISTCA_CHECK_INPUT(device.is_cpu() || fabric.world_size() == 1 || fabric.kind() == "nccl",
                     "ranks of kind '{}' exchange what lies in the CPU's memory: with device 'cuda' only one "
                     "rank runs",
                     fabric.kind());
}

double device_seconds(at::Device device, const std::function<void()>& body) {
  DeviceTimer timer(device);
  timer.start();
  body();
  return timer.stop();
}

}  // namespace distca
