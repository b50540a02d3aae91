// A Device made of this process's memory, for tests and for trying GPU ranks where there is no GPU. A stream
// is a queue. Work is done, under one lock, by whichever thread makes it possible: at once where nothing that
// it waits for is open. So runs are reproducible but for the order in which threads come.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "comm/device.h"

namespace distca {

class CpuDevice : public Device {
 public:
  /// What holds() says of memory that allocate() didn't return: a device's, or the host's.
  enum class Memory { kDevice, kHost };
  explicit CpuDevice(Memory memory);
  ~CpuDevice() override;

  Stream current_stream() override;
  void set_current_stream(Stream stream) override;
  Stream make_stream(const std::string& name) override;
  Event record(Stream stream) override;
  void wait(Stream stream, const Event& event) override;
  bool done(const Event& event) override;
  void copy(void* to, const void* from, int64_t bytes, Stream stream) override;
  void combine(void* sum, const void* x, int64_t count, DType dtype, ReduceOp op, Stream stream) override;
  bool holds(const void* pointer) override;
  void* allocate(int64_t bytes, Stream stream) override;
  void release(void* pointer) override;
  void* allocate_host(int64_t bytes) override;
  void release_host(void* pointer) override;

  /// An event of no stream, which is over once open() is called: work of the outside world that a stream
  /// waits for, as that of a communication library.
  Event make_gate();
  void open(const Event& gate);

  /// Queues `work`, which must neither block nor call the device.
  void run(Stream stream, std::function<void()> work);

  /// Blocks the calling thread until the stream has come to its end.
  void synchronize(Stream stream);

 private:
  struct Point;
  struct Queue;
  struct Item;
  struct Allocation {
    std::shared_ptr<char[]> data;  // held by queued work too, once it is released
    int64_t bytes = 0;
    Stream stream;  // none: the host's
  };

  static Queue& queue_of(Stream stream);
  void push(Stream stream, Item item);
  void drain();
  Allocation take(void* pointer);

  const Memory memory_;
  const int64_t serial_;  // among all devices of the process, gone ones too
  std::mutex mutex_;
  std::map<const char*, Allocation> allocations_;
  std::vector<std::unique_ptr<Queue>> queues_;
};

}  // namespace distca
