// What an NCCL rank's fabrics share: the operations under way, the failure that ends them all, and the thread
// that watches for it. The rank's own thread never waits inside NCCL or the device, but polls here.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl_operation.h"

namespace distca {

class NcclEngine {
 public:
  explicit NcclEngine(NcclJob job) : job_(std::move(job)) {}

  Device& device() { return *job_.device; }
  NcclApi& library() { return *job_.library; }
  Store& store() { return *job_.store; }
  const NcclJob& job() const { return job_; }

  /// For the rank's own thread. Those that throw PeerError do so once this rank or another has failed.

  bool has_failed();
  void check_running(const std::string& name, const std::vector<int32_t>& peers = {});
  /// Gives the operation its number; from here on its time counts.
  void enter(const std::shared_ptr<NcclOperation>& operation);
  /// The library has it, and hands it to the device when it can.
  void set_issued(NcclOperation& operation);
  /// The device has it, and comes to `end` after it.
  void queue(NcclOperation& operation, Event end);
  /// It is done without the device.
  void leave(NcclOperation& operation);
  /// It won't be done.
  void drop(NcclOperation& operation);
  /// Polls until `ready`. Throws PeerError.
  void wait_until(NcclOperation& operation, const std::function<bool()>& ready);
  /// Whether the device is done with it, and since when.
  bool is_over(NcclOperation& operation);
  double end_of(const NcclOperation& operation);
  /// Calls the library about `link`. Returns whether the call is over. Throws Error where it was wrong,
  /// PeerError where it failed.
  bool begin_call(NcclLink& link, NcclOperation& operation, const std::function<NcclResult()>& function);
  /// Whether what was begun on `link` is over; throws likewise.
  bool is_call_over(NcclLink& link, NcclOperation& operation);
  /// Begins a call and polls until it is over.
  void call(NcclLink& link, NcclOperation& operation, const std::function<NcclResult()>& function);

  void add(const std::shared_ptr<NcclLink>& link);
  /// No more calls come: lets go of the communicator when it is quiet, which may take a few seconds.
  void release(const std::shared_ptr<NcclLink>& link);
  /// Ends what is under way there, on this rank's side.
  void end_link(NcclLink& link);

  /// Has the message end all ranks, unless there is a failure already. Any thread.
  void abort(const std::string& message);

  /// For the watching thread.

  /// Looks at everything once. Returns the seconds until it should again.
  double watch();
  /// Tells those who will ask that this rank is gone.
  void say_last();
  /// Ends what is left.
  void end_links();

 private:
  struct Failure {
    std::string message;
    bool own = false;  // this rank's words already
  };

  /// After a failure: returns once nothing uses the rank's buffers any more, or NCCL can't be made to let go.
  void wait_for_end();
  void throw_failure(const std::string& name, const std::vector<int32_t>& peers);
  /// Returns false where there is a failure already.
  bool set_failure(const std::string& message, bool own);
  /// The same, and tells all ranks.
  void fail(const std::string& message, bool own);

  /// What the library says of an error, in words.
  std::string error_text(NcclLink& link, NcclResult result);
  void update(NcclOperation& operation, bool start_done, bool end_done);
  std::shared_ptr<NcclOperation> next_late();
  void look_at_operations();
  void look_at_issued(NcclOperation& operation);
  void look_at_links();
  void report_late(NcclOperation& operation);
  /// What the ranks say who answer in time. `to_the_end`: a failure may still come from one that has
  /// answered.
  std::map<int32_t, RankPosition> ask(bool to_the_end);
  RankPosition position();
  void answer();

  const NcclJob job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  bool links_ended_ = false;
  std::list<std::shared_ptr<NcclOperation>> under_way_;
  std::vector<std::shared_ptr<NcclLink>> links_;
  std::string last_name_;
  double last_begun_ = 0;
  int64_t answered_ = 0;  // the last question; the watching thread alone uses it and the next
  double next_store_look_ = 0;
};

/// Watches while it lives. Its thread outlives it where NCCL doesn't end what was aborted.
class NcclWatch {
 public:
  explicit NcclWatch(std::shared_ptr<NcclEngine> engine);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  NcclEngine& engine() { return *engine_; }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool stopping = false, ended = false;
  };
  std::shared_ptr<NcclEngine> engine_;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace distca
