#include "attend/live_bytes.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <deque>
#include <mutex>
#include <new>

namespace distca {
namespace {

thread_local LiveBytes* t_current = nullptr;

/// Stands before a tensor's memory, whose alignment it keeps.
struct Header {
  LiveBytes* count;
  int64_t bytes;
};
constexpr size_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes);

Header count_here(size_t bytes) {
  const Header header{t_current, static_cast<int64_t>(bytes)};
  if (header.count != nullptr) header.count->add(header.bytes);
  return header;
}

void uncount(const Header& header) {
  if (header.count != nullptr) header.count->remove(header.bytes);
}

class CountingCpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_counted, c10::Device(c10::kCPU)};
    char* const base = static_cast<char*>(c10::alloc_cpu(bytes + kHeaderBytes));
    new (base) Header(count_here(bytes));
    void* const data = base + kHeaderBytes;
    return {data, data, &free_counted, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free_counted(void* data) {
    if (data == nullptr) return;
    char* const base = static_cast<char*>(data) - kHeaderBytes;
    uncount(*std::launder(reinterpret_cast<Header*>(base)));
    c10::free_cpu(base);
  }
};

class CountingMetaAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (t_current == nullptr) return {nullptr, nullptr, &free_counted, c10::Device(c10::kMeta)};
    return {nullptr, new Header(count_here(bytes)), &free_counted, c10::Device(c10::kMeta)};
  }

  void copy_data(void*, const void*, size_t) const override {}

 private:
  static void free_counted(void* context) {
    if (context == nullptr) return;
    const auto* header = static_cast<Header*>(context);
    uncount(*header);
    delete header;
  }
};

}  // namespace

void LiveBytes::add(int64_t bytes) {
  const int64_t now = now_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  allocations_.fetch_add(1, std::memory_order_relaxed);
}

void enable_live_bytes() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors that outlive main() are freed through them.
    c10::SetAllocator(c10::kCPU, new CountingCpuAllocator, /*priority=*/1);
    c10::SetAllocator(c10::kMeta, new CountingMetaAllocator, /*priority=*/1);
  });
}

LiveBytes& new_live_bytes() {
  static std::mutex mutex;
  static auto* const counts = new std::deque<LiveBytes>;
  const std::lock_guard lock(mutex);
  return counts->emplace_back();
}

LiveBytesScope::LiveBytesScope(LiveBytes* count) : before_(t_current) {
  t_current = count;
}

LiveBytesScope::~LiveBytesScope() {
  t_current = before_;
}

LiveBytes* current_live_bytes() {
  return t_current;
}

}  // namespace distca
