#include "attend/device_graph_cuda.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "base/check.h"

namespace distca {
namespace {

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(at::cuda::MempoolId_t pool) : pool_(pool) {}

  // Autograd's thread ends and begins graphs too, which only the relaxed mode allows. Other ranks' threads
  // may share the device: they are not disturbed in it either.
  void begin() override { graph_.capture_begin(pool_, cudaStreamCaptureModeRelaxed); }

  bool empty() override {
    const cudaGraphNode_t* last = nullptr;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    size_t count = 0;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
#if CUDART_VERSION >= 13000
    const cudaError_t error =
        cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &last, nullptr, &count);
#else
    const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &last, &count);
#endif
    DISTCA_CHECK(error == cudaSuccess && status == cudaStreamCaptureStatusActive,
                 "the stream is not being captured: {}", cudaGetErrorString(error));
    return count == 0;
  }

  void end() override {
    graph_.capture_end();
  }

  void give_up() noexcept override {
    try {
      graph_.capture_end();
    } catch (...) {  // the reason for giving up is told instead
    }
    cudaGetLastError();
  }

  void run() override {
    graph_.replay();
  }

 private:
  at::cuda::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

class CudaGraphPool : public GraphPool {
 public:
  explicit CudaGraphPool(at::Device device)
      : pool_(at::cuda::graph_pool_handle()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  std::unique_ptr<DeviceGraph> make() override { return std::make_unique<CudaGraph>(pool_); }
  std::shared_ptr<void> recording_stream() override {
    return std::make_shared<c10::cuda::CUDAStreamGuard>(stream_);
  }

 private:
  at::cuda::MempoolId_t pool_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace

std::unique_ptr<GraphPool> make_cuda_graph_pool(at::Device device) {
  return std::make_unique<CudaGraphPool>(device);
}

}  // namespace distca
