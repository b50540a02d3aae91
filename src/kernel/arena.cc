#include "kernel/arena.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace distca {

Arena::~Arena() {
  std::free(memory_);
}

Arena& Arena::of_thread() {
  thread_local Arena arena;
  return arena;
}

void Arena::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  std::free(memory_);
  memory_ = nullptr;
  capacity_ = 0;
  // Panels are read column by column: with small pages they would not fit in the TLB.
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded));
  if (memory_ == nullptr) throw std::bad_alloc();
  madvise(memory_, rounded, MADV_HUGEPAGE);
  capacity_ = rounded;
}

}  // namespace distca
