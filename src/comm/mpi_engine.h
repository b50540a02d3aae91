// The thread that makes all MPI calls of a rank. It initialises MPI, tells peers what this rank calls, moves
// the bytes of calls that match, and hands failures on; between, it sleeps 20 to 200 microseconds (2 ms when
// nothing is under way), because ranks share cores. The rank's own thread waits on a condition variable.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "comm/mpi_call.h"

namespace distca {

class MpiTransport;

class MpiEngine {
 public:
  /// Initialises MPI. Throws Error when that fails.
  explicit MpiEngine(const FabricOptions& options);
  /// Finalises MPI. All ranks must have come to their end.
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }

  /// Begins the call. Throws Error when a rank has failed.
  void enter(const std::shared_ptr<MpiCall>& call);
  /// Returns when all of it is done. Throws Error when the timeout expires or a rank has failed.
  void wait(const MpiCall& call);
  bool done(const MpiCall& call);
  /// The same of what comes to this rank alone.
  void wait_arrived(const MpiCall& call);
  bool arrived(const MpiCall& call);
  /// Gives up what isn't done; the call's buffers are free when this returns. Where data is on its way and
  /// does not arrive within 2 s, the job ends here, with the error of the last wait.
  void leave(MpiCall& call);

  /// Records the failure, unless there is one, and tells all ranks.
  void fail(const std::string& message, bool input_error);

  /// Prints `message` as this rank's last words, gives the others a moment for theirs, and ends the job.
  [[noreturn]] void end_job(const std::string& message, bool input_error);

 private:
  struct Outgoing {
    int32_t peer, kind;
    std::string bytes;
  };
  enum class State { kStarting, kRunning, kStopping, kAborting };

  void run();
  bool make_progress();
  void sleep(std::unique_lock<std::mutex>& lock, bool moved);

  // With the lock held:
  void fail_locked(const FailureMessage& failure);
  /// Meets what peers said of a call with what this rank calls.
  void match(const MpiKey& key);
  std::string disagreement(MpiCall* call, int32_t peer, const CallMessage& message) const;
  void begin(const std::shared_ptr<MpiCall>& call, MpiPair& pair, const CallMessage& message);
  /// All has come from this peer.
  void all_came(MpiCall& call, const MpiPair& pair);
  void close_if_done(MpiCall& call, const MpiPair& pair);
  /// Waits until that count of the call's open pairs is 0.
  void wait_for(const MpiCall& call, const int64_t& open);
  std::vector<int32_t> missing(const MpiCall& call) const;

  FabricOptions options_;
  int parent_ = 0;
  int32_t rank_ = 0, world_size_ = 1;

  std::mutex mutex_;
  std::condition_variable wake_engine_, wake_rank_;
  State state_ = State::kStarting;
  std::string start_error_;
  std::deque<Outgoing> outgoing_;
  std::map<MpiKey, std::shared_ptr<MpiCall>> calls_;                      // with open pairs
  std::map<MpiKey, std::vector<std::pair<int32_t, CallMessage>>> early_;  // by sender; not yet met
  std::vector<MpiKey> fresh_;  // of which there is something new to match
  std::map<std::tuple<std::string, int32_t, int32_t>, int64_t> entered_;  // operations so far
  std::set<MpiKey> left_;
  int32_t tags_ = 0;
  bool failed_ = false;
  FailureMessage failure_;
  std::string last_error_;  // of this rank's waits

  std::unique_ptr<MpiTransport> transport_;  // the engine's thread alone touches it
  int64_t idle_us_ = 20;
  std::thread thread_;
};

}  // namespace distca
