// Buffers of one rank that are allocated once and used again: a tensor taken from the pool gives its memory
// back when its last reference goes. Steps of equal plans allocate nothing after the first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace distca {

class BufferPool {
 public:
  BufferPool();
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// An uninitialised contiguous tensor of these sizes. It may outlive the pool. On the meta device it has no
  /// memory, and counts as if it had.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

  /// Ends a round of use: lets go of free memory that was not taken since the last call. Rounds of equal
  /// plans lose nothing by it, and what odd ones needed doesn't stay for ever.
  void trim();

  /// Allocations made so far, and bytes held now, in use or free.
  int64_t allocations() const;
  int64_t bytes_held() const;
  /// The most bytes that were in use at once.
  int64_t peak_bytes_in_use() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace distca
