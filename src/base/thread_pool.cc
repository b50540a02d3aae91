#include "base/thread_pool.h"

#include "base/check.h"

namespace distca {

ThreadPool::ThreadPool(int threads) {
  DISTCA_CHECK(threads >= 1, "a thread pool needs at least 1 thread, not {}", threads);
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t, int)>& body) {
  if (workers_.empty()) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    next_ = 0;
    count_ = count;
    error_ = nullptr;
    busy_ = threads();
    ++loop_;
  }
  start_.notify_all();
  take_iterations(0);
  std::unique_lock lock(mutex_);
  finish_.wait(lock, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || loop_ != seen; });
      if (stop_) return;
      seen = loop_;
    }
    take_iterations(thread);
  }
}

void ThreadPool::take_iterations(int thread) {
  std::unique_lock lock(mutex_);
  while (next_ < count_ && !error_) {
    const int64_t i = next_++;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*body_)(i, thread);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
  }
  if (--busy_ == 0) finish_.notify_one();
}

}  // namespace distca
