// What an NCCL rank has under way: communicators with their streams, and operations on them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl.h"
#include "comm/nccl_position.h"

namespace distca {

struct NcclOperation;

/// A communicator and the stream that its operations run on. The rank's own thread uses it, and the one that
/// watches.
struct NcclLink {
  std::string path;              // how it was split off the whole; "" for that
  std::vector<int32_t> members;  // ranks of the job, by rank of the communicator
  int32_t index = 0;             // this rank's among them
  Stream stream;

  std::mutex mutex;  // of calls of the library, none of which takes long, and of what follows
  NcclCommunicator communicator;
  bool connected = false;
  bool gone = false;

  /// Its last operation, where the library hasn't handed it to the device yet; the rank's thread alone uses
  /// it.
  std::shared_ptr<NcclOperation> unsettled;
  /// Written to by a split that is under way, and so kept when the split fails.
  std::shared_ptr<NcclLink> child;

  LinkPosition position;  // the engine's lock guards it

  /// Calls the library. Once the communicator is gone: kInProgress, as whoever asks will learn why.
  NcclResult locked(const std::function<NcclResult()>& call);
  /// The other members.
  std::vector<int32_t> peers() const;
};

/// A stretch of memory that an operation reads or writes. Where it is the host's, the operation works on a
/// copy of it on the device.
struct NcclBuffer {
  void* pointer = nullptr;
  int64_t bytes = 0;
  bool read = false, written = false;
  bool is_host = false;  // whatever the device says
};

/// Copies on the device of host memory, for one operation.
class NcclStaging {
 public:
  NcclStaging(std::shared_ptr<Device> device, Stream stream) : device_(std::move(device)), stream_(stream) {}
  ~NcclStaging();
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  /// Has those of the buffers that are the host's point to copies, which hold what is read.
  void replace(std::vector<NcclBuffer>& buffers);
  bool empty() const { return copies_.empty(); }
  /// Queues bringing what was written as far as the device's host memory.
  void fetch();
  /// After all of it is done: writes it where it belongs, once.
  void finish();
  /// The device has come to the end of what uses the copies.
  void set_idle() { idle_ = true; }

 private:
  struct Copy {
    NcclBuffer host;
    void *reachable, *device;
  };
  std::shared_ptr<Device> device_;
  Stream stream_;
  std::vector<Copy> copies_;
  bool idle_ = false, finished_ = false;
};

/// The engine's lock guards what changes after the operation began.
struct NcclOperation {
  std::string name;
  std::vector<int32_t> peers;  // of the job: whom it needs
  std::shared_ptr<NcclLink> link;
  int64_t number = 0;  // among the link's

  bool is_empty = false;  // nothing is moved, so that nobody waits

  double since = 0;      // when its time began to count
  bool issued = false;   // handed to the library
  bool matched = false;  // which has handed it to the device
  bool queued = false;   // between the two events
  bool started = false;  // the stream has come to it
  bool over = false;
  double ended = 0;
  std::string error;  // what NCCL reported
  Event start, end;
  std::unique_ptr<NcclStaging> staging;

  LateOperation late() const { return {link->path, number, peers}; }
};

}  // namespace distca
