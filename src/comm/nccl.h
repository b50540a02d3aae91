// Ranks with a device each that exchange bytes through NCCL. What it moves is ordered with the streams of
// tensor operations on both sides: a transfer begins after what the calling thread queued before it, and
// what the thread queues after the call (after Pending::wait(), for an exchange) begins after the transfer.
// The host waits for neither. Each fabric, those from split() too, has a communicator and a stream of its
// own, so that their operations overlap; messages between two ranks have one more, made with the first of
// them.
//
// Memory that isn't the device's is moved through the device: the call, or Pending::wait(), returns when the
// data is there. Meant for numbers and texts, not for tensors.
//
// A thread watches what is under way. Where a transfer takes longer than the timeout from when its turn came
// on the stream, or NCCL reports an error, it asks all ranks how far they have come, ends the communicators,
// and has every later call and every wait of the host throw a PeerError that names who is late, in what, and
// since when. The other ranks end with that message within a second or two. What a rank computes with data
// from a transfer that was ended means nothing: the next call throws.
//
// NCCL wants operations of different communicators that overlap to begin in the same order on all their
// ranks.
//
// Differences to other fabrics: sums are made in NCCL's order (in rank order where ranks are threads that
// share a device); NCCL can't see calls that don't match, which hang and are reported as such, unless
// `check_calls` is on; Pending::end() doesn't know whose message came last; an exchange that is given up
// still moves its data, ordered before what the thread queues next.
#pragma once

#include <memory>

#include "comm/device.h"
#include "comm/nccl_api.h"
#include "comm/store.h"

namespace distca {

struct NcclOptions {
  double timeout_s = 60;
  /// How long a rank has to say how far it has come before it is called silent.
  double grace_s = 2;
  /// For debugging: ranks compare what they call, with all sizes, before they do it.
  bool check_calls = false;
};

struct NcclJob {
  std::shared_ptr<Device> device;
  std::shared_ptr<NcclApi> library;
  std::shared_ptr<Store> store;  // of this job alone
  int32_t rank = 0, world_size = 1;
  NcclOptions options;
};

/// A collective of all ranks of the job.
std::unique_ptr<Fabric> make_nccl_fabric(const NcclJob& job);

}  // namespace distca
