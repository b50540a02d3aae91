// Ranks of one thread fabric and the operations they have under way. An operation has a place for the call of
// each of its members; a call says where that rank's memory is. Memory moves by a copy that one thread makes
// from another's buffer: of an exchange, whoever of two peers calls last; of a collective, each member once
// all have called.
//
// Where messages take time, a call also says what it sends over the links, in one phase or two (all_reduce:
// slices to those who sum them, sums to all). Each rank posts its messages of a phase when its clock is
// there, and is done with a phase when those for it have come and its own have left; memory may have been
// copied before.
//
// Everything here is guarded by the job's lock, except the copies. A rank that copies is counted as a user of
// the calls whose memory it touches, and a call that is given up (its wait threw, or its Pending was
// destroyed) waits for its users before its buffers may go.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "comm/thread_job.h"

namespace distca {

class ThreadGroup;

/// Bytes of one phase by member; kNoMessage where none goes. What stands for the rank itself doesn't count.
using PhaseBytes = std::vector<int64_t>;
inline constexpr int64_t kNoMessage = -1;

/// Of an exchange, as one rank sees it: what comes, or that and what goes.
enum class Half { kComing, kBoth };

/// One rank's part in an operation.
struct ThreadCall {
  std::string name;
  std::string what;  // name, kind and sizes: equal on all members
  const void* data = nullptr;
  void* out = nullptr;
  std::vector<ExchangePart> parts;  // of an exchange
  int32_t color = 0;                // of a split
  std::vector<PhaseBytes> phases;   // as many on all members; none where messages take no time

  /// By phase, those that have begun, and member; null where no message goes.
  std::vector<std::vector<std::shared_ptr<Transfer>>> transfers;

  std::vector<int64_t> send_bytes, receive_bytes;  // of an exchange, as bytes_by_peer gives them
  std::vector<char> open;                          // of an exchange, by peer: bytes still to be copied
  int32_t open_count = 0;
  std::vector<char> comes;  // of an exchange, by peer: whether it sends any
  PendingEnd copied, came;  // the last of all, and of those that come
  int32_t users = 0;
  bool finished = false;
  bool given_up = false;  // its memory may be gone
  bool dropped = false;   // given up though no error was under way: peers are told at once. Where one is, it
                          // ends the job's waits in a moment, and says more

  bool is_open(size_t peer, Half half) const { return open[peer] && (half == Half::kBoth || comes[peer]); }
  int32_t open_peers(Half half) const;
};

struct ThreadOperation {
  std::vector<int32_t> members;                    // ranks of the group
  std::vector<std::shared_ptr<ThreadCall>> calls;  // by member; null until it calls
  int32_t arrived = 0, finished = 0;
  std::map<int32_t, std::shared_ptr<ThreadGroup>> groups;  // of a split, by color
};

class ThreadGroup {
 public:
  /// Which operation: (-1, -1, n) is the n-th of all ranks, (a, b, n) the n-th message from a to b.
  using Key = std::tuple<int32_t, int32_t, int64_t>;

  ThreadGroup(std::shared_ptr<ThreadJob> job, std::vector<int32_t> world_ranks)
      : job(std::move(job)), world_ranks(std::move(world_ranks)) {}

  int32_t size() const { return static_cast<int32_t>(world_ranks.size()); }

  /// Enters the call of `rank` into its operation, which is made when this is the first call. Throws Error
  /// when a rank has failed or another member's call doesn't match. Lock held.
  std::shared_ptr<ThreadOperation> enter(int32_t rank, Key key, std::shared_ptr<ThreadCall> call);

  /// Posts the messages of the next phase of member `index`. Lock held.
  void begin_phase(ThreadOperation& operation, size_t index);

  /// Waits until member `index` is done with its last phase.
  void finish_phase(ThreadJob::Lock& lock, const ThreadOperation& operation, size_t index);

  /// Messages to and from member `index` in `phase`, which all members have begun; or those to it alone.
  static std::vector<const Transfer*> transfers_of(const ThreadOperation& operation, size_t index,
                                                   size_t phase, Half half = Half::kBoth);

  /// Copies what can be copied between the exchange `call` of `rank` and those that were entered before. Lock
  /// held on entry and return.
  void copy_with_earlier(ThreadJob::Lock& lock, ThreadOperation& operation, int32_t rank);

  /// Waits until all bytes of the exchange `call` of `rank` are copied, or those that come.
  void wait_for_exchange(ThreadJob::Lock& lock, const ThreadOperation& operation, int32_t rank, Half half);

  /// A whole collective: enters, waits for all members, calls work(operation) without the lock, waits until
  /// all are done.
  void run(int32_t rank, Key key, ThreadCall call, const std::function<void(ThreadOperation&)>& work);

  /// Gives up what `call` of `rank` has not finished; its buffers are free when this returns.
  void give_up(ThreadJob::Lock& lock, const ThreadOperation& operation, int32_t rank, ThreadCall& call);

  /// When the exchange `call` of `rank`, all of whose bytes are copied, is over by the links, or was copied
  /// where there are none; or its coming half. Lock held.
  PendingEnd end_of_exchange(const ThreadOperation& operation, int32_t rank, Half half) const;

  /// Whether the exchange `call` needs a peer that gave up, so that it can't be done any more.
  static bool is_lost(const ThreadOperation& operation, const ThreadCall& call, Half half);

  const std::shared_ptr<ThreadJob> job;
  const std::vector<int32_t> world_ranks;

 private:
  void check_pair(int32_t sender, const ThreadCall& sends, int32_t receiver,
                  const ThreadCall& receives) const;
  void copy_pair(int32_t sender, const ThreadCall& sends, int32_t receiver, const ThreadCall& receives) const;
  /// The members for which test(call) holds (a null call: not entered), as ranks of the job.
  template <typename Test>
  std::vector<int32_t> select(const ThreadOperation& operation, Test test) const;
  /// Waits until test(call) holds for every member, where a null call is one that hasn't entered.
  template <typename Test>
  void wait_for_members(ThreadJob::Lock& lock, const ThreadOperation& operation, int32_t rank,
                        const ThreadCall& call, Test test);
  void wake_members(const ThreadOperation& operation) const;

  std::map<Key, std::shared_ptr<ThreadOperation>> operations_;  // those that some member hasn't entered
};

}  // namespace distca
