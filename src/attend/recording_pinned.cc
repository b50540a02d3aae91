#include "attend/recording_pinned.h"

#include <c10/core/impl/alloc_cpu.h>

#include "attend/recording_state.h"

namespace distca::testing {
namespace {

/// Lives as long as the process, like tensors that may outlive main().
Memory& pinned_memory() {
  static Memory& memory = *new Memory;
  return memory;
}

class PinnedAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* const data = c10::alloc_cpu(bytes);
    pinned_memory().add(data, bytes);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    pinned_memory().remove(data);
    c10::free_cpu(data);
  }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return allocator;
}

bool is_pinned(const void* pointer) {
  return pinned_memory().holds(pointer);
}

}  // namespace distca::testing
