// Whether work that several streams of one device were given is ordered: a log of what each stream reads and
// writes and of the events between them, and a checker that finds every access that isn't ordered with an
// earlier one to the same memory. It is what a device without a race detector is tested by.
//
// Streams are numbered from 0. A stream runs its own entries in order; an event that was recorded on one and
// waited for on another orders all before the first with all after the second; nothing else orders anything.
// Two accesses to the same byte, one of them a write, must be ordered. Memory that is given back is
// written by the stream that it belongs to, whose next allocation it may become: what others did there must
// be over by then, and what others do in the next allocation must be ordered with it too.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace distca {

struct StreamEntry {
  enum class Kind {
    kRead,
    kWrite,
    kRelease,   // memory is given back
    kRecord,    // of event `event`
    kWait,      // for event `event`
    kHostWait,  // the host waits for all of the stream
  };
  Kind kind = Kind::kRead;
  int32_t stream = 0;
  uint64_t begin = 0, end = 0;  // addresses, of accesses
  int64_t event = -1;           // each is recorded once
  std::string what;
};

/// Entries in the order in which the host gave them. Safe from any thread.
class StreamLog {
 public:
  void add(StreamEntry entry);
  std::vector<StreamEntry> take();

 private:
  std::mutex mutex_;
  std::vector<StreamEntry> entries_;
};

/// The first accesses that aren't ordered with an earlier one, `most` of them at most, each as a line that
/// names both. `left_out` is the index of an entry that is taken out first; −1: none.
std::vector<std::string> unordered_accesses(const std::vector<StreamEntry>& entries, int64_t left_out = -1,
                                            size_t most = 1);

}  // namespace distca
