// What ranks that are threads of one process share: one lock, a place for each rank to sleep, the first
// failure, which ends all waits, and where there are any, virtual clocks and links. Every wait of a thread
// rank goes through ThreadJob::block.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "comm/fabric.h"
#include "comm/link_model.h"
#include "comm/rank_clock.h"
#include "comm/report.h"

namespace distca {

class ThreadJob {
 public:
  using Lock = std::unique_lock<std::mutex>;

  ThreadJob(int32_t ranks, const FabricOptions& options);

  Lock lock() { return Lock(mutex_); }

  /// Of the rank's clock; called by its thread.
  double now(int32_t rank) const;

  /// `rank` comes into the fabric, and leaves it, which waits for a core where the clock is virtual. Calls
  /// nest; a rank begins inside. Without the lock.
  void enter(int32_t rank);
  void leave(int32_t rank);
  /// `rank` will call no more. Without the lock.
  void end(int32_t rank);

  /// The functions below are called with the lock held.

  void wake(int32_t rank) { sleepers_[rank].notify_all(); }

  /// Records that `rank` failed, unless another did before, and ends all waits.
  void fail(int32_t rank, const std::string& message, bool input_error);

  bool failed() const { return failed_; }

  /// Throws when a rank has failed.
  void check_running(int32_t rank, const std::string& name) const;

  /// Sleeps until ready() holds, which may come true at the wall time `again` without a wake. Throws Error
  /// when a rank has failed or the timeout expires, naming the ranks that missing() returns.
  template <typename Ready, typename Missing>
  void block(Lock& lock, int32_t rank, const std::string& name, Ready ready, Missing missing,
             double again = std::numeric_limits<double>::infinity());

  /// Lets ranks that wait for a core have that of `rank`, which gets one again when it leaves the fabric.
  void give_core(int32_t rank);

  bool has_links() const { return links_.has_value(); }

  /// Messages that `from` sends now, in this order, to {peer, bytes}. Only where there are links.
  std::vector<std::shared_ptr<Transfer>> post(int32_t from,
                                              const std::vector<std::pair<int32_t, int64_t>>& messages);

  /// When `rank` is done with `transfers`: what comes is there, what goes has left.
  double end_of(int32_t rank, const std::vector<const Transfer*>& transfers);

  /// Waits on the rank's clock until it is done with `transfers`.
  void wait_for(Lock& lock, int32_t rank, const std::string& name,
                const std::vector<const Transfer*>& transfers);

  /// Sleeps until ready() holds, which only a copy under way in another thread can delay.
  template <typename Ready>
  void settle(Lock& lock, int32_t rank, Ready ready) {
    sleepers_[rank].wait(lock, ready);
  }

  /// Throws the first failure, its rank named.
  void throw_failure() const;

 private:
  FabricOptions options_;
  std::optional<LinkModel> links_;
  std::optional<RankClocks> clocks_;
  std::mutex mutex_;
  std::vector<std::condition_variable> sleepers_;
  bool failed_ = false, input_error_ = false;
  std::string failure_;
};

template <typename Ready, typename Missing>
void ThreadJob::block(Lock& lock, int32_t rank, const std::string& name, Ready ready, Missing missing,
                      double again) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(options_.timeout_s);
  const auto last = std::chrono::time_point_cast<Clock::duration>(deadline);
  while (!ready()) {
    if (failed_) throw Error(stopped_message(rank, missing(), name, failure_));
    give_core(rank);
    const double seconds = again - wall_seconds();
    const bool at_last = seconds > options_.timeout_s;  // and so later than `last`, or never
    const auto until = at_last ? last
                               : std::min(last, Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                                   std::chrono::duration<double>(seconds)));
    sleepers_[rank].wait_until(lock, until);
    if (Clock::now() >= last && !failed_ && !ready()) {
      throw Error(timeout_message(rank, options_.timeout_s, missing(), name));
    }
  }
}

/// While it lives, its rank is inside the fabric. Made before the job's lock is taken.
class FabricCall {
 public:
  FabricCall(ThreadJob& job, int32_t rank) : job_(job), rank_(rank) { job_.enter(rank); }
  ~FabricCall() { job_.leave(rank_); }
  FabricCall(const FabricCall&) = delete;
  FabricCall& operator=(const FabricCall&) = delete;

 private:
  ThreadJob& job_;
  int32_t rank_;
};

}  // namespace distca
