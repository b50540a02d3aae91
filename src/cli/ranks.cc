#include "cli/ranks.h"

#include <cstdlib>

#include "base/check.h"
#include "comm/launch.h"
#include "comm/mpi.h"
#include "comm/threads.h"

#if DISTCA_CUDA
#include "comm/cuda/cuda_device.h"
#include "comm/cuda/nccl_rank.h"
#include "comm/nccl_threads.h"
#endif

namespace distca {
namespace {

std::optional<LaunchedRank> launched_here() {
  return launched_rank([](const char* name) -> const char* { return std::getenv(name); });
}

bool launched_by_torchrun() {
  return std::getenv("TORCHELASTIC_RUN_ID") != nullptr;
}

#if DISTCA_CUDA
NcclOptions nccl_options(const FabricOptions& options) {
  NcclOptions nccl;
  nccl.timeout_s = options.timeout_s;
  return nccl;
}
#endif

}  // namespace

bool launched_as_rank(at::DeviceType device) {
  if (device == at::kCUDA) return launched_here().has_value();
  DISTCA_CHECK_INPUT(!launched_by_torchrun() || launched_by_mpi(),
                     "torchrun starts ranks that have a GPU each (--device cuda); ranks on CPUs are threads, "
                     "or processes of mpirun or srun");
  return launched_by_mpi();
}

int run_launched_rank(at::DeviceType device, const FabricOptions& options,
                      const std::function<void(Fabric&)>& body) {
#if DISTCA_CUDA
  if (device == at::kCUDA) return run_nccl_rank(*launched_here(), nccl_options(options), body);
#endif
  return run_mpi_rank(options, body);
}

void run_ranks_as_threads(int32_t ranks, at::Device device, const FabricOptions& options,
                          const std::vector<double>& speeds, const std::function<void(Fabric&)>& body) {
#if DISTCA_CUDA
  if (device.is_cuda()) {
    return run_nccl_thread_ranks(ranks, nccl_options(options), make_cuda_device(device.index()), body);
  }
#endif
  run_thread_ranks(ranks, options, speeds, body);
}

}  // namespace distca
