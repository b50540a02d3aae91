// A device as a Fabric sees it: memory, and streams of work that the host hands over and doesn't wait for.
// Knows neither CUDA nor tensors, so that a fabric over it runs in tests on CPU memory, and so that a
// decorator can watch who reads and writes what in which order.
//
// Nothing here blocks the host for long: work is queued, and events say how far a stream has come. Every
// function may be called by any thread, and throws Error where the device reports a failure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/fabric.h"

namespace distca {

/// A queue of work that the device does in order. Valid as long as its device.
struct Stream {
  void* handle = nullptr;
  friend bool operator==(Stream a, Stream b) { return a.handle == b.handle; }
};

/// A point in a stream, which is over when all work queued there before it is done. Released with its last
/// copy. An Event that record() didn't return is none.
struct Event {
  std::shared_ptr<void> handle;
  explicit operator bool() const { return handle != nullptr; }
};

class Device {
 public:
  virtual ~Device() = default;

  /// Where tensor operations of the calling thread go.
  virtual Stream current_stream() = 0;
  /// Has tensor operations of the calling thread go to `stream` from now on.
  virtual void set_current_stream(Stream stream) = 0;
  /// A new stream; `name` is for traces. Streams go when the device does.
  virtual Stream make_stream(const std::string& name) = 0;

  virtual Event record(Stream stream) = 0;
  /// What is queued on `stream` from now on begins after the event.
  virtual void wait(Stream stream, const Event& event) = 0;
  /// Whether the event is over. Returns at once.
  virtual bool done(const Event& event) = 0;

  /// Queues a copy between any memory of this device and any host memory that allocate_host() returned.
  virtual void copy(void* to, const void* from, int64_t bytes, Stream stream) = 0;
  /// Queues sum[i] = sum[i] op x[i]; a NaN in either makes the result NaN. Memory of this device.
  virtual void combine(void* sum, const void* x, int64_t count, DType dtype, ReduceOp op, Stream stream) = 0;

  /// Whether `pointer` is this device's memory; host memory otherwise.
  virtual bool holds(const void* pointer) = 0;
  /// Memory of the device for work on `stream` alone. May be released while such work is still queued.
  virtual void* allocate(int64_t bytes, Stream stream) = 0;
  virtual void release(void* pointer) = 0;
  /// Host memory that the device reaches. Must not be released while queued work uses it.
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void release_host(void* pointer) = 0;

  /// Told, before it is queued, of a transfer's reads and writes that the functions above don't show: what a
  /// communication library does on `stream`. For those who watch; a device itself has no use for it.
  virtual void reads(Stream /*stream*/, const void* /*pointer*/, int64_t /*bytes*/) {}
  virtual void writes(Stream /*stream*/, const void* /*pointer*/, int64_t /*bytes*/) {}
};

}  // namespace distca
