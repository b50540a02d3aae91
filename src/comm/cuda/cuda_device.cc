#include "comm/cuda/cuda_device.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <vector>

#include "base/message.h"

namespace distca {
namespace {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next call of anybody reports it once more
  throw Error(format("the device can't {}: {}", what, cudaGetErrorString(result)));
}

/// PyTorch's errors in our words.
template <typename Work>
auto with_torch(const char* what, Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    throw Error(format("the device can't {}: {}", what, message_of(error)));
  }
}

cudaStream_t cuda(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Events are made once and used again: making one takes longer than all else that is done with it.
class EventPool {
 public:
  ~EventPool() {
    for (cudaEvent_t event : free_) static_cast<void>(cudaEventDestroy(event));
  }

  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    return event;
  }

  /// Who waits for what was recorded goes on waiting for that.
  void give(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

c10::ScalarType scalar_type(DType dtype) {
  return dtype == DType::kFloat32 ? at::kFloat : dtype == DType::kFloat64 ? at::kDouble : at::kLong;
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int32_t index)
      : index_(static_cast<c10::DeviceIndex>(index)), events_(std::make_shared<EventPool>()) {}

  ~CudaDevice() override {
    for (cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
  }

  Stream current_stream() override { return {c10::cuda::getCurrentCUDAStream(index_).stream()}; }

  void set_current_stream(Stream stream) override {
    check(cudaSetDevice(index_), "be chosen");
    c10::cuda::setCurrentCUDAStream(torch_stream(stream));
  }

  Stream make_stream(const std::string&) override {
    const c10::cuda::CUDAGuard guard(index_);
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "tell its priorities");
    cudaStream_t stream = nullptr;
    // Transfers are short and others wait for them: they go before what computes.
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "make a stream");
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
    return {stream};
  }

  Event record(Stream stream) override {
    const c10::cuda::CUDAGuard guard(index_);
    const auto events = events_;
    cudaEvent_t event = events->take();
    Event out{{event, [events](void* done) { events->give(static_cast<cudaEvent_t>(done)); }}};
    check(cudaEventRecord(event, cuda(stream)), "record an event");
    return out;
  }

  void wait(Stream stream, const Event& event) override {
    check(cudaStreamWaitEvent(cuda(stream), static_cast<cudaEvent_t>(event.handle.get()), 0),
          "wait for an event");
  }

  bool done(const Event& event) override {
    // Asking must not spoil the capture of a graph that another thread makes meanwhile.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "be asked");
    const cudaError_t result = cudaEventQuery(static_cast<cudaEvent_t>(event.handle.get()));
    check(cudaThreadExchangeStreamCaptureMode(&mode), "be asked");
    if (result == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check(result, "finish its work");
    return true;
  }

  void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    if (bytes == 0 || to == from) return;
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, cuda(stream)), "copy");
  }

  void combine(void* sum, const void* x, int64_t count, DType dtype, ReduceOp op, Stream stream) override {
    with_torch("add", [&] {
      const c10::cuda::CUDAStreamGuard guard(torch_stream(stream));
      const at::NoGradGuard no_grad;
      const auto options = at::TensorOptions().dtype(scalar_type(dtype)).device(at::kCUDA, index_);
      at::Tensor total = at::from_blob(sum, {count}, options);
      const at::Tensor next = at::from_blob(const_cast<void*>(x), {count}, options);
      if (op == ReduceOp::kSum) {
        total.add_(next);
      } else {
        at::maximum_out(total, total, next);
      }
    });
  }

  bool holds(const void* pointer) override {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, pointer), "tell whose memory that is");
    if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) return false;
    DISTCA_CHECK(attributes.type == cudaMemoryTypeManaged || attributes.device == index_,
                 "memory of CUDA device {} was given to a rank of device {}", attributes.device,
                 static_cast<int>(index_));
    return true;
  }

  void* allocate(int64_t bytes, Stream stream) override {
    return with_torch("allocate", [&] {
      const c10::cuda::CUDAGuard guard(index_);
      return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(static_cast<size_t>(bytes), cuda(stream));
    });
  }
  /// The allocator gives it out again for work on the same stream alone, which comes after what is queued.
  void release(void* pointer) override { c10::cuda::CUDACachingAllocator::raw_delete(pointer); }

  void* allocate_host(int64_t bytes) override {
    at::DataPtr data = with_torch("allocate on the host", [&] {
      return at::getHostAllocator(at::kCUDA)->allocate(static_cast<size_t>(bytes));
    });
    void* pointer = data.get();
    const std::lock_guard lock(mutex_);
    host_[pointer] = std::move(data);
    return pointer;
  }
  void release_host(void* pointer) override {
    const std::lock_guard lock(mutex_);
    host_.erase(pointer);
  }

 private:
  c10::cuda::CUDAStream torch_stream(Stream stream) const {
    return c10::cuda::getStreamFromExternal(cuda(stream), index_);
  }

  const c10::DeviceIndex index_;
  std::shared_ptr<EventPool> events_;
  std::mutex mutex_;
  std::vector<cudaStream_t> streams_;
  std::map<void*, at::DataPtr> host_;
};

}  // namespace

std::shared_ptr<Device> make_cuda_device(int32_t index) {
  const int32_t count = cuda_device_count();
  DISTCA_CHECK_INPUT(index >= 0 && index < count, "there is no CUDA device {}: this process sees {}", index,
                     count);
  return std::make_shared<CudaDevice>(index);
}

int32_t cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

}  // namespace distca
