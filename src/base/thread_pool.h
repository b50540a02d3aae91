// A fixed set of threads that run the iterations of a loop. The kernel splits its own work evenly, so
// iterations are handed out in order, one at a time; results must not depend on which thread runs which.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace distca {

class ThreadPool {
 public:
  /// `threads` counts the calling thread: a pool of 1 starts none and runs loops in place.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(i, thread) once for each i in [0, count), thread in [0, threads()), and returns when all are
  /// done. The first exception that a call throws is thrown here, after the others have ended. One loop at a
  /// time.
  void run(int64_t count, const std::function<void(int64_t, int)>& body);

 private:
  void work(int thread);
  void take_iterations(int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, finish_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t next_ = 0, count_ = 0;
  uint64_t loop_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace distca
