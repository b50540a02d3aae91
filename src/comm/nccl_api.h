// The functions of NCCL that the fabric calls, as an interface: NCCL itself where there are CUDA headers, a
// library of threads that share a device, and libraries that fail on purpose. As with a communicator made
// with `blocking = 0`, no function waits for another rank: what isn't over yet returns kInProgress, and
// async_error() says when it is.
#pragma once

#include <cstdint>
#include <string>

#include "comm/device.h"

namespace distca {

/// ncclResult_t.
enum class NcclResult {
  kSuccess,
  kInProgress,
  kDeviceError,  // ncclUnhandledCudaError
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kTimeout,
};

/// What NCCL says of a result: "remote process exited or there was a network error".
std::string nccl_text(NcclResult result);

/// ncclComm_t: one rank's end of a communicator.
struct NcclCommunicator {
  void* handle = nullptr;
  explicit operator bool() const { return handle != nullptr; }
};

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  /// Any bytes; one call makes the identity of one communicator.
  virtual NcclResult get_unique_id(std::string* id) = 0;

  /// `communicator` must stay where it is until async_error() of it says that it is ready.
  virtual NcclResult comm_init_rank(NcclCommunicator* communicator, int32_t ranks, const std::string& id,
                                    int32_t rank) = 0;
  /// Collective. `child` must stay where it is; it is set once async_error(parent) isn't kInProgress any
  /// more, and is ready when async_error(child) says so.
  virtual NcclResult comm_split(NcclCommunicator parent, int32_t color, int32_t key,
                                NcclCommunicator* child) = 0;

  /// Calls of this thread between these two begin together. Groups don't nest.
  virtual NcclResult group_start() = 0;
  virtual NcclResult group_end() = 0;

  virtual NcclResult send(const void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                          Stream stream) = 0;
  virtual NcclResult receive(void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                             Stream stream) = 0;
  virtual NcclResult all_reduce(const void* data, void* out, int64_t count, DType dtype, ReduceOp op,
                                NcclCommunicator communicator, Stream stream) = 0;
  virtual NcclResult reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                                    NcclCommunicator communicator, Stream stream) = 0;
  virtual NcclResult all_gather(const void* data, void* out, int64_t bytes, NcclCommunicator communicator,
                                Stream stream) = 0;
  virtual NcclResult broadcast(void* data, int64_t bytes, int32_t root, NcclCommunicator communicator,
                               Stream stream) = 0;

  /// kInProgress while the last call isn't over, kSuccess, or what went wrong since the communicator began.
  virtual NcclResult async_error(NcclCommunicator communicator) = 0;
  /// More of the last error, or "".
  virtual std::string last_error(NcclCommunicator communicator) = 0;

  /// Ends what is under way; may take a while. The communicator is gone.
  virtual NcclResult abort(NcclCommunicator communicator) = 0;
  /// Says that no more calls come; when async_error() is kSuccess, destroy() doesn't block.
  virtual NcclResult finalize(NcclCommunicator communicator) = 0;
  virtual NcclResult destroy(NcclCommunicator communicator) = 0;
};

}  // namespace distca
