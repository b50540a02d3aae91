#include "comm/cpu_device.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/reduce.h"

namespace distca {
namespace {

/// Where the calling thread's operations go, and on which device.
struct Current {
  int64_t device = 0;
  Stream stream;
};
thread_local Current current;
std::atomic<int64_t> devices = 0;

}  // namespace

struct CpuDevice::Point {
  bool over = false;  // guarded by the device's lock
};

struct CpuDevice::Item {
  std::shared_ptr<Point> waits_for;  // or null
  std::function<void()> work;
};

struct CpuDevice::Queue {
  std::string name;
  std::deque<Item> items;
};

CpuDevice::CpuDevice(Memory memory) : memory_(memory), serial_(++devices) {}

CpuDevice::~CpuDevice() = default;

CpuDevice::Queue& CpuDevice::queue_of(Stream stream) {
  return *static_cast<Queue*>(stream.handle);
}

Stream CpuDevice::current_stream() {
  if (current.device != serial_) set_current_stream(make_stream("a thread's own"));
  return current.stream;
}

void CpuDevice::set_current_stream(Stream stream) {
  current = {serial_, stream};
}

Stream CpuDevice::make_stream(const std::string& name) {
  const std::lock_guard lock(mutex_);
  queues_.push_back(std::make_unique<Queue>(Queue{name, {}}));
  return {queues_.back().get()};
}

Event CpuDevice::record(Stream stream) {
  auto point = std::make_shared<Point>();
  push(stream, {nullptr, [point] { point->over = true; }});
  return {point};
}

void CpuDevice::wait(Stream stream, const Event& event) {
  push(stream, {std::static_pointer_cast<Point>(event.handle), [] {}});
}

bool CpuDevice::done(const Event& event) {
  const std::lock_guard lock(mutex_);
  return static_cast<const Point*>(event.handle.get())->over;
}

void CpuDevice::copy(void* to, const void* from, int64_t bytes, Stream stream) {
  run(stream, [=] {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
  });
}

void CpuDevice::combine(void* sum, const void* x, int64_t count, DType dtype, ReduceOp op, Stream stream) {
  run(stream, [=] {
    const std::array<const void*, 2> sources = {sum, x};
    reduce_in_rank_order(sources, sum, count, dtype, op);
  });
}

bool CpuDevice::holds(const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  const std::lock_guard lock(mutex_);
  const auto next = allocations_.upper_bound(at);
  if (next != allocations_.begin()) {
    const auto& [begin, allocation] = *std::prev(next);
    if (at < begin + allocation.bytes) return allocation.stream.handle != nullptr;
  }
  return memory_ == Memory::kDevice;
}

void* CpuDevice::allocate(int64_t bytes, Stream stream) {
  const std::shared_ptr<char[]> data(new char[bytes + 1]);
  const std::lock_guard lock(mutex_);
  allocations_[data.get()] = {data, bytes + 1, stream};
  return data.get();
}

CpuDevice::Allocation CpuDevice::take(void* pointer) {
  const std::lock_guard lock(mutex_);
  return allocations_.extract(static_cast<char*>(pointer)).mapped();
}

void CpuDevice::release(void* pointer) {
  const Allocation allocation = take(pointer);
  run(allocation.stream, [data = allocation.data] {});
}

void* CpuDevice::allocate_host(int64_t bytes) {
  return allocate(bytes, {});
}

void CpuDevice::release_host(void* pointer) {
  take(pointer);
}

Event CpuDevice::make_gate() {
  return {std::make_shared<Point>()};
}

void CpuDevice::open(const Event& gate) {
  const std::lock_guard lock(mutex_);
  static_cast<Point*>(gate.handle.get())->over = true;
  drain();
}

void CpuDevice::run(Stream stream, std::function<void()> work) {
  push(stream, {nullptr, std::move(work)});
}

void CpuDevice::synchronize(Stream stream) {
  const Event end = record(stream);
  while (!done(end)) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void CpuDevice::push(Stream stream, Item item) {
  const std::lock_guard lock(mutex_);
  queue_of(stream).items.push_back(std::move(item));
  drain();
}

void CpuDevice::drain() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const std::unique_ptr<Queue>& queue : queues_) {
      std::deque<Item>& items = queue->items;
      while (!items.empty() && (!items.front().waits_for || items.front().waits_for->over)) {
        items.front().work();
        items.pop_front();
        moved = true;
      }
    }
  }
}

}  // namespace distca
