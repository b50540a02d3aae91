#include "comm/cuda/nccl_library.h"

#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>

#include <cstring>

namespace distca {
namespace {

NcclResult result_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return NcclResult::kSuccess;
    case ncclInProgress:
      return NcclResult::kInProgress;
    case ncclUnhandledCudaError:
      return NcclResult::kDeviceError;
    case ncclSystemError:
      return NcclResult::kSystemError;
    case ncclInvalidArgument:
      return NcclResult::kInvalidArgument;
    case ncclInvalidUsage:
      return NcclResult::kInvalidUsage;
    case ncclRemoteError:
      return NcclResult::kRemoteError;
    default:
      return NcclResult::kInternalError;
  }
}

ncclComm_t comm(NcclCommunicator communicator) {
  return static_cast<ncclComm_t>(communicator.handle);
}

/// NCCL writes its handle where ours lies.
ncclComm_t* place_of(NcclCommunicator* communicator) {
  static_assert(sizeof(ncclComm_t) == sizeof(communicator->handle));
  return reinterpret_cast<ncclComm_t*>(&communicator->handle);
}

cudaStream_t cuda(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

ncclDataType_t data_type(DType dtype) {
  return dtype == DType::kFloat32 ? ncclFloat32 : dtype == DType::kFloat64 ? ncclFloat64 : ncclInt64;
}

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

class NcclLibrary : public NcclApi {
 public:
  explicit NcclLibrary(int32_t device) : device_(static_cast<c10::DeviceIndex>(device)) {}

  NcclResult get_unique_id(std::string* id) override {
    ncclUniqueId out;
    const ncclResult_t result = ncclGetUniqueId(&out);
    id->assign(out.internal, sizeof out.internal);
    return result_of(result);
  }

  NcclResult comm_init_rank(NcclCommunicator* communicator, int32_t ranks, const std::string& id,
                            int32_t rank) override {
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal) return NcclResult::kInvalidArgument;
    std::memcpy(unique.internal, id.data(), sizeof unique.internal);
    const c10::cuda::CUDAGuard guard(device_);
    ncclConfig_t config = non_blocking();
    return result_of(ncclCommInitRankConfig(place_of(communicator), ranks, unique, rank, &config));
  }

  NcclResult comm_split(NcclCommunicator parent, int32_t color, int32_t key,
                        NcclCommunicator* child) override {
    const c10::cuda::CUDAGuard guard(device_);
    ncclConfig_t config = non_blocking();
    return result_of(ncclCommSplit(comm(parent), color, key, place_of(child), &config));
  }

  NcclResult group_start() override { return result_of(ncclGroupStart()); }
  NcclResult group_end() override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclGroupEnd());
  }

  NcclResult send(const void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                  Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclSend(data, size(bytes), ncclInt8, peer, comm(communicator), cuda(stream)));
  }
  NcclResult receive(void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                     Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclRecv(data, size(bytes), ncclInt8, peer, comm(communicator), cuda(stream)));
  }

  NcclResult all_reduce(const void* data, void* out, int64_t count, DType dtype, ReduceOp op,
                        NcclCommunicator communicator, Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    const ncclRedOp_t operation = op == ReduceOp::kSum ? ncclSum : ncclMax;
    return result_of(
        ncclAllReduce(data, out, size(count), data_type(dtype), operation, comm(communicator), cuda(stream)));
  }
  NcclResult reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                            NcclCommunicator communicator, Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclReduceScatter(data, out, size(count), data_type(dtype), ncclSum, comm(communicator),
                                       cuda(stream)));
  }
  NcclResult all_gather(const void* data, void* out, int64_t bytes, NcclCommunicator communicator,
                        Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclAllGather(data, out, size(bytes), ncclInt8, comm(communicator), cuda(stream)));
  }
  NcclResult broadcast(void* data, int64_t bytes, int32_t root, NcclCommunicator communicator,
                       Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(
        ncclBroadcast(data, data, size(bytes), ncclInt8, root, comm(communicator), cuda(stream)));
  }

  NcclResult async_error(NcclCommunicator communicator) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm(communicator), &state);
    return result_of(result == ncclSuccess ? state : result);
  }
  std::string last_error(NcclCommunicator communicator) override {
    const char* text = ncclGetLastError(comm(communicator));
    return text == nullptr ? "" : text;
  }

  NcclResult abort(NcclCommunicator communicator) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclCommAbort(comm(communicator)));
  }
  NcclResult finalize(NcclCommunicator communicator) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclCommFinalize(comm(communicator)));
  }
  NcclResult destroy(NcclCommunicator communicator) override {
    const c10::cuda::CUDAGuard guard(device_);
    return result_of(ncclCommDestroy(comm(communicator)));
  }

 private:
  static size_t size(int64_t count) { return static_cast<size_t>(count); }

  const c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<NcclApi> make_nccl_library(int32_t device) {
  return std::make_shared<NcclLibrary>(device);
}

}  // namespace distca
