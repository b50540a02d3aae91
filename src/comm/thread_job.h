// What ranks that are threads of one process share: one lock, a place for each rank to sleep, and the first
// failure, which ends all waits. Every wait of a thread rank goes through ThreadJob::block.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "comm/fabric.h"
#include "comm/report.h"

namespace distca {

class ThreadJob {
 public:
  using Lock = std::unique_lock<std::mutex>;

  ThreadJob(int32_t ranks, const FabricOptions& options) : options_(options), sleepers_(ranks) {}

  Lock lock() { return Lock(mutex_); }

  /// The functions below are called with the lock held.

  void wake(int32_t rank) { sleepers_[rank].notify_all(); }

  /// Records that `rank` failed, unless another did before, and ends all waits.
  void fail(int32_t rank, const std::string& message, bool input_error);

  bool failed() const { return failed_; }

  /// Throws when a rank has failed.
  void check_running(int32_t rank, const std::string& name) const;

  /// Sleeps until ready() holds. Throws Error when a rank has failed or the timeout expires, naming the ranks
  /// that missing() returns.
  template <typename Ready, typename Missing>
  void block(Lock& lock, int32_t rank, const std::string& name, Ready ready, Missing missing);

  /// Sleeps until ready() holds, which only a copy under way in another thread can delay.
  template <typename Ready>
  void settle(Lock& lock, int32_t rank, Ready ready) {
    sleepers_[rank].wait(lock, ready);
  }

  /// Throws the first failure, its rank named.
  void throw_failure() const;

 private:
  FabricOptions options_;
  std::mutex mutex_;
  std::vector<std::condition_variable> sleepers_;
  bool failed_ = false, input_error_ = false;
  std::string failure_;
};

template <typename Ready, typename Missing>
void ThreadJob::block(Lock& lock, int32_t rank, const std::string& name, Ready ready, Missing missing) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.timeout_s);
  const auto last = std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline);
  while (!ready()) {
    if (failed_) throw Error(stopped_message(rank, missing(), name, failure_));
    const bool expired = sleepers_[rank].wait_until(lock, last) == std::cv_status::timeout;
    if (expired && !failed_ && !ready()) {
      throw Error(timeout_message(rank, options_.timeout_s, missing(), name));
    }
  }
}

}  // namespace distca
