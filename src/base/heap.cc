#include "base/heap.h"

#include <cstdlib>

#include "base/sanitizer.h"

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace distca {

#ifdef __GLIBC__
namespace {

constexpr int kGrowth = 64 << 20;
constexpr size_t kLargePage = size_t{2} << 20;

/// Large pages for the heap as it will grow: up to half of the machine's memory, of which nothing is touched.
void ask_for_large_pages() {
  const auto half =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = half / kLargePage * kLargePage;
  if (void* const heap = std::aligned_alloc(kLargePage, bytes)) {
    madvise(heap, bytes, MADV_HUGEPAGE);
    std::free(heap);
  }
}

}  // namespace

void keep_freed_memory() {
  if (kSanitized) return;
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // none
  mallopt(M_TOP_PAD, kGrowth);
  mallopt(M_ARENA_MAX, 1);
  ask_for_large_pages();
}
#else
void keep_freed_memory() {}
#endif

}  // namespace distca
