#include "comm/nccl_api.h"

namespace distca {

std::string nccl_text(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "no error";
    case NcclResult::kInProgress:
      return "operation in progress";
    case NcclResult::kDeviceError:
      return "unhandled device error";
    case NcclResult::kSystemError:
      return "system error: a call to the operating system or a library failed";
    case NcclResult::kInternalError:
      return "internal error";
    case NcclResult::kInvalidArgument:
      return "invalid argument";
    case NcclResult::kInvalidUsage:
      return "invalid usage";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kTimeout:
      return "operation timed out";
  }
  return "unknown result";
}

}  // namespace distca
