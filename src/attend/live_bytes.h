// Bytes of live tensors, rank by rank: an allocator under PyTorch's CPU tensors that adds what a thread
// allocates to the count which that thread works for, and takes it off there when the tensor goes, whichever
// thread lets go of it. Off until asked for; then an allocation costs two atomic additions and 64 bytes more.
//
// Tensors on the meta device, which have sizes and no memory, are counted alike: a program that runs on them
// tells what it would need.
#pragma once

#include <atomic>
#include <cstdint>

namespace distca {

class LiveBytes {
 public:
  /// Of tensors that are alive, and the most there were at once.
  int64_t now() const { return now_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

  /// Forgets the peak: it is what lives now.
  void reset_peak() { peak_.store(now(), std::memory_order_relaxed); }

  void add(int64_t bytes);
  void remove(int64_t bytes) { now_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_{0}, peak_{0}, allocations_{0};
};

/// From now on tensors are counted. Call it before threads that make tensors begin. Can't be undone.
void enable_live_bytes();

/// A count that lives as long as the process, because tensors may outlive the rank that made them.
LiveBytes& new_live_bytes();

/// What this thread allocates counts there, as long as this lives. A null count: nowhere.
class LiveBytesScope {
 public:
  explicit LiveBytesScope(LiveBytes* count);
  ~LiveBytesScope();
  LiveBytesScope(const LiveBytesScope&) = delete;
  LiveBytesScope& operator=(const LiveBytesScope&) = delete;

 private:
  LiveBytes* before_;
};

/// The count that this thread works for, or null: for threads that it starts.
LiveBytes* current_live_bytes();

}  // namespace distca
