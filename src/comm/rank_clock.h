// Virtual clocks of ranks that are threads of one machine, and the cores that they share. A rank's clock goes
// by the CPU time of its thread while it is outside the fabric, so that it says when the rank would be where
// it is if it had a core of its own; neither sleeping nor what the fabric itself does moves it. No more ranks
// are outside the fabric at once than there are cores (else caches and cores that ranks take from each other
// would count as work), and a core that becomes free goes to the rank whose clock is the furthest behind.
//
// Calls are guarded by the job's lock, except now(). A rank's clock is moved by its own thread alone.
#pragma once

#include <cstdint>
#include <vector>

namespace distca {

class RankClocks {
 public:
  /// All clocks stand at 0, all ranks inside the fabric. `cores` 0: those of this machine. A rank of speed s
  /// takes 1 / s seconds for a second of CPU time; `speeds` empty: all 1.
  RankClocks(int32_t ranks, int32_t cores, const std::vector<double>& speeds = {});

  /// Seconds on the clock of `rank`. Called by its thread, without the lock.
  double now(int32_t rank) const;

  /// `rank` comes into the fabric: its clock stands still. Calls nest.
  void enter(int32_t rank);
  /// Whether `rank`, which is about to leave the fabric, has a core; it is in the queue for one if not.
  bool has_core(int32_t rank);
  /// `rank` leaves the fabric: its clock goes on.
  void leave(int32_t rank);
  /// How often `rank` has entered and not left.
  int32_t depth(int32_t rank) const { return states_[rank].depth; }

  /// Gives up the core of `rank`. Returns the rank that has it now, or -1.
  int32_t give_core(int32_t rank);

  /// Moves the clock of `rank`, which is inside the fabric, on to `time` unless it is later already.
  void raise(int32_t rank, double time);
  /// `rank` will call no more: it has left for good.
  void end(int32_t rank) { states_[rank].ended = true; }
  bool ended(int32_t rank) const { return states_[rank].ended; }

  /// The earliest time at which any rank can still do something.
  double least() const;

 private:
  struct State {
    double clock = 0;    // when it last entered, or was raised to
    double resumed = 0;  // its thread's CPU time when it last left
    double speed = 1;
    int32_t depth = 1;
    bool has_core = false, waits_for_core = false, ended = false;
  };

  std::vector<State> states_;
  int32_t free_cores_;
};

}  // namespace distca
