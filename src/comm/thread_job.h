// What ranks that are threads of one process share: one lock, a place for each rank to sleep, the first
// failure, which ends all waits, and where there are any, virtual clocks and links. Every wait of a thread
// rank goes through ThreadJob::block.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
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

class ThreadGroup;

/// Ranks that agree to go on without some others.
struct SurvivorRound {
  std::vector<char> arrived;  // by rank
  bool complete = false;
  bool some_ended = false;           // a rank had no more to do before it was asked
  std::vector<int32_t> ranks;        // once complete: those that arrived
  std::weak_ptr<ThreadGroup> group;  // of them, once one has made it
};

class ThreadJob {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Throws InputError for links, or speeds of virtual clocks, that can't be.
  ThreadJob(int32_t ranks, const FabricOptions& options, const std::vector<double>& speeds);

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
  void wake_all();

  /// Records that `rank` failed, unless another did before, and ends all waits.
  void fail(int32_t rank, const std::string& message, bool input_error);

  /// The same, but where the others can go on without `rank` their operations end with RankLost, until each
  /// has called agree().
  void lose(int32_t rank, const std::string& message);

  /// Waits until all ranks that are left have come, and returns what they agree on: the first `count` losses
  /// and who is left. Should another be lost meanwhile, that one isn't waited for.
  std::pair<size_t, std::shared_ptr<SurvivorRound>> agree(Lock& lock, int32_t rank, const std::string& name);

  const std::vector<LostRank>& losses() const { return losses_; }

  bool failed() const { return failed_; }

  /// Throws when a rank has failed, or is lost and `rank` hasn't agreed to go on.
  void check_running(int32_t rank, const std::string& name) const;
  /// The second alone; `peers` are those that `rank` waits for.
  void check_losses(int32_t rank, const std::string& name, const std::vector<int32_t>& peers) const;

  /// Sleeps until ready() holds, which may come true at the wall time `again` without a wake. Throws
  /// PeerError when a rank has failed or was lost or the timeout expires, naming the ranks that missing()
  /// returns.
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
  /// What a rank sleeps for; the lock guards it.
  struct Sleep {
    const std::string* name = nullptr;  // null: it doesn't
    std::function<std::vector<int32_t>()> missing;
  };

  /// A wait that expired; its rank's failure may not be known yet when those that wait for it expire too.
  struct Expired {
    std::string name;  // empty: none
    std::vector<int32_t> peers;
  };

  /// ", which waits for rank 3 in NAME", as far as it goes, where all of `peers` wait themselves or did until
  /// their time was up; "" where one of them doesn't and so is the one to look at.
  std::string waits_of(std::vector<int32_t> peers) const;

  FabricOptions options_;
  std::optional<LinkModel> links_;
  std::optional<RankClocks> clocks_;
  std::mutex mutex_;
  std::vector<std::condition_variable> sleepers_;
  bool failed_ = false, input_error_ = false;
  std::string failure_;
  std::vector<LostRank> losses_;
  std::vector<size_t> known_;     // by rank: losses that it has agreed to go on after
  std::vector<char> ended_;       // by rank
  std::vector<Sleep> sleeps_;     // by rank
  std::vector<Expired> expired_;  // by rank: its last wait, where that is so
  std::map<size_t, std::shared_ptr<SurvivorRound>> rounds_;  // by losses agreed on
};

template <typename Ready, typename Missing>
void ThreadJob::block(Lock& lock, int32_t rank, const std::string& name, Ready ready, Missing missing,
                      double again) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(options_.timeout_s);
  const auto last = std::chrono::time_point_cast<Clock::duration>(deadline);
  struct Sleeper {
    Sleep& sleep;
    ~Sleeper() { sleep = {}; }
  } sleeper{sleeps_[rank]};
  expired_[rank] = {};
  while (!ready()) {
    if (failed_) throw PeerError(stopped_message(rank, missing(), name, failure_));
    check_losses(rank, name, missing());
    sleeper.sleep = {&name, missing};
    give_core(rank);
    const double seconds = again - wall_seconds();
    const bool at_last = seconds > options_.timeout_s;  // and so later than `last`, or never
    const auto until = at_last ? last
                               : std::min(last, Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                                   std::chrono::duration<double>(seconds)));
    sleepers_[rank].wait_until(lock, until);
    if (Clock::now() >= last && !failed_ && known_[rank] == losses_.size() && !ready()) {
      expired_[rank] = {name, missing()};
      throw PeerError(timeout_message(rank, options_.timeout_s, missing(), name) + waits_of(missing()));
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
