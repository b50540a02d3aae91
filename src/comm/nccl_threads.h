// NCCL for ranks that are threads of one process and share a device, which the real one can't do: so that
// what needs many ranks can be tried on one GPU, or on none. Memory moves by the device's copies, ordered by
// events on both sides' streams; sums are made in rank order.
//
// A call is handed to the device when all who take part in it have called; until then async_error() says
// kInProgress, and nothing is queued that waits for what isn't there yet. (A GPU has fewer queues than it has
// streams, so that a stream that waits for another thread could keep that one's work waiting too.)
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/nccl.h"

namespace distca {

/// `device` is shared by all ranks.
std::shared_ptr<NcclApi> make_nccl_for_threads(std::shared_ptr<Device> device);

/// Runs `body` as `ranks` ranks, one thread each with a stream of its own, and returns when all have ended.
/// When a rank throws, all waits of the others end, and the error of the rank that failed first is thrown
/// here, its rank named.
void run_nccl_thread_ranks(int32_t ranks, const NcclOptions& options, const std::shared_ptr<Device>& device,
                           const std::function<void(Fabric&)>& body);

/// The same for ranks that differ in what their fabric stands on.
void run_nccl_thread_ranks(const std::vector<NcclJob>& jobs, const std::function<void(Fabric&)>& body);

}  // namespace distca
