// A Fabric is one rank's view of a set of ranks that exchange bytes. Three kinds: threads in one process (no
// launcher, works under a debugger and a thread sanitizer), MPI processes, and NCCL devices. Every operation
// has a name, every wait a timeout, and an expired wait throws an Error that names the peer and the
// operation.
//
// All ranks of a fabric call the same operations in the same order, with the same names: what doesn't match
// is an Error that tells both. Sends and receives are matched pair by pair, apart from the rest. Sums are
// made in rank order, so that every kind of fabric gives the same bits (but NCCL's own; comm/nccl.h says what
// else differs there). Messages number ranks as the whole
// job does, in the fabrics that split() makes too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"

namespace distca {

/// An operation that failed by what other ranks did or didn't do: an expired wait, calls that don't match, a
/// failure elsewhere. A rank that throws anything else has failed itself.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// A rank that is gone, and what it said last, its rank named: "rank 4: no more memory".
struct LostRank {
  int32_t rank = 0;
  std::string failure;
};

/// Thrown by every operation of a rank that hasn't called survivors() since another was lost.
class RankLost : public PeerError {
 public:
  RankLost(const std::string& message, LostRank lost) : PeerError(message), lost(std::move(lost)) {}
  LostRank lost;
};

/// Bytes for or from one peer, `offset` bytes into a buffer.
struct PeerBytes {
  int32_t peer = 0;
  int64_t offset = 0, bytes = 0;
};

/// One buffer's share of an all-to-all: what goes out of `send` and comes into `recv`, by peer. Only peers
/// with bytes are listed, each at most once; what a sends to b must be what b expects from a. A rank may send
/// to itself.
struct ExchangePart {
  const void* send = nullptr;
  void* recv = nullptr;
  std::vector<PeerBytes> sends, receives;
};

/// How an operation ended: the time on this rank's clock, and the rank of the job whose message came or went
/// last; 0 and -1 where nothing had to come or go. -1 too where the fabric can't know.
struct PendingEnd {
  double time = 0;
  int32_t peer = -1;
};

/// An operation under way. Buffers stay untouched (receives) or unchanged (sends) until wait() returns. One
/// that is destroyed before it is done gives the operation up: its buffers are free again, and peers that
/// still need it get an Error that names this rank.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Returns when all has arrived and all sent buffers may be reused. Throws Error naming peer and operation
  /// when the fabric's timeout expires, or when another rank has aborted.
  virtual void wait() = 0;
  /// Whether wait() would return, or throw, at once on this rank's clock.
  virtual bool done() = 0;
  /// After wait(): when it was over and whose message was the last.
  virtual PendingEnd end() = 0;

  /// Returns when all that this rank gets has arrived. What it sends may be under way until wait() returns,
  /// which is still to be called.
  virtual void wait_arrived() { wait(); }
  /// Whether wait_arrived() would return, or throw, at once on this rank's clock.
  virtual bool arrived() { return done(); }
  /// After wait_arrived(): when the last message came, and whose it was.
  virtual PendingEnd arrival() { return end(); }
};

enum class DType { kFloat32, kFloat64, kInt64 };

template <typename T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kInt64;

enum class ReduceOp { kSum, kMax };

struct Survivors;

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world_size() const = 0;
  /// "threads", "mpi", "nccl".
  virtual std::string kind() const = 0;
  /// Seconds on this rank's clock: wall_seconds(), or the rank's virtual clock where the fabric has one.
  /// Every time that is reported of a rank is a difference of two of these. Called by the rank's own thread.
  virtual double now();

  /// Starts an all-to-all of several buffers at once. It progresses while the caller computes.
  virtual std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) = 0;

  /// In place, in rank order.
  virtual void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name) = 0;
  /// `data` holds world_size · count elements; rank r ends with the sum of all ranks' slice r in `out`.
  virtual void reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                              const std::string& name) = 0;
  /// `out` holds world_size · bytes; slice r is rank r's `data`.
  virtual void all_gather(const void* data, void* out, int64_t bytes, const std::string& name) = 0;
  virtual void broadcast(void* data, int64_t bytes, int32_t root, const std::string& name) = 0;
  /// Returns when the peer has received, so two ranks must not both send first.
  virtual void send(const void* data, int64_t bytes, int32_t peer, const std::string& name) = 0;
  virtual void receive(void* data, int64_t bytes, int32_t peer, const std::string& name) = 0;
  virtual void barrier(const std::string& name) = 0;
  /// Ends the waits of all ranks, each with an Error that carries `message` and names this rank.
  virtual void abort(const std::string& message) = 0;

  /// A fabric of those ranks that gave the same color, numbered in the order of their ranks here.
  virtual std::unique_ptr<Fabric> split(int32_t color, const std::string& name) = 0;

  /// After RankLost, a collective of all ranks that are left: a fabric of them, numbered in their order. All
  /// fabrics from before it are over, and what they had under way may be done on some ranks and not on
  /// others. Called on any of a rank's fabrics. Throws Error where the kind of fabric can't go on.
  virtual Survivors survivors(const std::string& name);

  template <typename T>
  void all_reduce(std::span<T> data, ReduceOp op, const std::string& name) {
    all_reduce(data.data(), static_cast<int64_t>(data.size()), kDTypeOf<T>, op, name);
  }
};

struct Survivors {
  /// Null where some rank has ended its part already, so that there is nothing left to do together.
  std::unique_ptr<Fabric> fabric;
  std::vector<int32_t> ranks;  // of the job, by rank of the fabric
  std::vector<LostRank> lost;  // all so far, in the order in which they went
};

/// What a message costs, for ranks that are threads. `kWall`: waits end when that much wall time has passed,
/// of which none needs a core. `kVirtual`: every rank has a clock of its own, which goes by the CPU time that
/// its thread spends outside the fabric; a wait moves it on to the arrival of what was waited for, and takes
/// no longer than the copies do. comm/link_model.h and comm/rank_clock.h say what is promised.
struct LinkOptions {
  enum class Clock { kWall, kVirtual };
  Clock clock = Clock::kWall;
  double latency = 0, bandwidth = 0;            // inside a node: seconds; bytes/s of a rank, 0: unlimited
  double node_latency = 0, node_bandwidth = 0;  // between nodes: seconds; bytes/s of a node, 0: unlimited
  int64_t ranks_per_node = 0;                   // 0: all are one node
  int32_t cores = 0;  // ranks that may compute at once (virtual clock); 0: as many as this machine's cores
};

struct FabricOptions {
  double timeout_s = 60;  // of every wait, in wall time
  LinkOptions link = {};
  /// Whether the others can go on when those ranks are lost; asked when a rank throws, with all that were
  /// lost before. Where it says no, as without it, the job ends with that rank's message. Ranks that are
  /// threads only.
  std::function<bool(const std::vector<int32_t>& lost)> can_lose = {};
};

}  // namespace distca
