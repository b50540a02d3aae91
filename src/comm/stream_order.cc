#include "comm/stream_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"

namespace distca {
namespace {

using Kind = StreamEntry::Kind;

/// How far each stream is known to have come, in entries.
using Clock = std::vector<int64_t>;

void advance_to(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Access {
  int32_t stream = -1;
  int64_t time = 0;  // on its stream
  int64_t entry = -1;
};

/// What was last done to a run of bytes: the write, and reads since, the last of each stream.
struct Run {
  uint64_t end = 0;
  Access write;
  std::vector<Access> reads;
};

class Checker {
 public:
  Checker(const std::vector<StreamEntry>& entries, size_t most) : entries_(entries), most_(most) {}

  void enter(int64_t index) {
    const StreamEntry& entry = entries_[static_cast<size_t>(index)];
    const auto stream = static_cast<size_t>(entry.stream);
    if (clocks_.size() <= stream) clocks_.resize(stream + 1);
    Clock& clock = clocks_[stream];
    if (clock.size() <= stream) clock.resize(stream + 1, 0);
    ++clock[stream];
    if (entry.kind == Kind::kRecord) {
      events_[entry.event] = clock;
    } else if (entry.kind == Kind::kWait) {
      const auto event = events_.find(entry.event);
      if (event != events_.end()) advance_to(clock, event->second);
    } else if (entry.kind != Kind::kHostWait && entry.begin < entry.end) {
      access(entry, {entry.stream, clock[stream], index});
    }
  }

  bool full() const { return found_.size() >= most_; }
  std::vector<std::string> found_;

 private:
  void access(const StreamEntry& entry, const Access& now) {
    split_at(entry.begin);
    split_at(entry.end);
    uint64_t at = entry.begin;
    auto run = runs_.lower_bound(at);
    bool told = false;
    while (at < entry.end) {
      if (run == runs_.end() || run->first > at) {
        const uint64_t end = run == runs_.end() ? entry.end : std::min(entry.end, run->first);
        run = runs_.emplace_hint(run, at, Run{end, {}, {}});
      }
      told = meet(run->second, entry, now, told);
      at = run->second.end;
      ++run;
    }
  }

  /// Checks an access against what was done to the run, and counts it there.
  bool meet(Run& run, const StreamEntry& entry, const Access& now, bool told) {
    const bool reads = entry.kind == Kind::kRead;
    const auto check = [&](const Access& before) {
      if (told || before.entry < 0 || is_before(before, now)) return;
      told = true;
      tell(before, entry);
    };
    check(run.write);
    if (!reads) {
      for (const Access& read : run.reads) check(read);
      run.write = now;
      run.reads.clear();
      return told;
    }
    const auto same = std::find_if(run.reads.begin(), run.reads.end(),
                                   [&](const Access& read) { return read.stream == now.stream; });
    same == run.reads.end() ? run.reads.push_back(now) : void(*same = now);
    return told;
  }

  bool is_before(const Access& before, const Access& now) const {
    const Clock& clock = clocks_[static_cast<size_t>(now.stream)];
    const auto stream = static_cast<size_t>(before.stream);
    return stream < clock.size() && clock[stream] >= before.time;
  }

  void tell(const Access& before, const StreamEntry& entry) {
    if (full()) return;
    const auto text = [](const StreamEntry& one) {
      const char* verb = one.kind == Kind::kRead    ? "reads"
                         : one.kind == Kind::kWrite ? "writes"
                                                    : "gives back";
      return format("stream {} {} {} bytes in {}", one.stream, verb, one.end - one.begin, one.what);
    };
    found_.push_back(format("{}, not ordered with before: {}", text(entry),
                            text(entries_[static_cast<size_t>(before.entry)])));
  }

  /// Makes `at` an edge of runs.
  void split_at(uint64_t at) {
    auto run = runs_.upper_bound(at);
    if (run == runs_.begin()) return;
    --run;
    if (run->first == at || run->second.end <= at) return;
    Run rest = run->second;
    run->second.end = at;
    runs_.emplace_hint(std::next(run), at, std::move(rest));
  }

  const std::vector<StreamEntry>& entries_;
  size_t most_;
  std::vector<Clock> clocks_;  // by stream
  std::map<int64_t, Clock> events_;
  std::map<uint64_t, Run> runs_;  // by their first byte; they don't overlap
};

}  // namespace

void StreamLog::add(StreamEntry entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

std::vector<StreamEntry> StreamLog::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(entries_, {});
}

std::vector<std::string> unordered_accesses(const std::vector<StreamEntry>& entries, int64_t left_out,
                                            size_t most) {
  Checker checker(entries, most);
  for (int64_t i = 0; i < static_cast<int64_t>(entries.size()) && !checker.full(); ++i)
    if (i != left_out) checker.enter(i);
  return std::move(checker.found_);
}

}  // namespace distca
