#include "attend/buffer_pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"

namespace distca {

struct BufferPool::State {
  std::mutex mutex;
  struct Block {
    at::Tensor memory;
    int64_t round = 0;  // in which it was last taken
  };
  std::multimap<std::pair<at::DeviceIndex, int64_t>, Block> free;  // by (device, bytes)
  int64_t round = 0;
  int64_t allocations = 0, bytes_held = 0, bytes_in_use = 0, peak_bytes_in_use = 0;
};

namespace {

// Sizes are rounded up by at most an eighth, so that plans of nearly equal size share blocks.
int64_t rounded(int64_t bytes) {
  int64_t step = 256;
  while (step * 16 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

/// A tensor of the meta device that calls `gone` when its last reference goes.
template <typename Gone>
at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType dtype, Gone gone) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) bytes *= size;
  const auto end = [](void* context) {
    const std::unique_ptr<Gone> gone(static_cast<Gone*>(context));
    (*gone)(nullptr);
  };
  c10::DataPtr data(nullptr, new Gone(std::move(gone)), end, c10::Device(at::kMeta));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace

BufferPool::BufferPool() : state_(std::make_shared<State>()) {}
BufferPool::~BufferPool() = default;

at::Tensor BufferPool::take(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) bytes *= size;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (bytes == 0) return at::empty(sizes, options);
  bytes = rounded(bytes);
  at::Tensor block;
  int64_t round = 0;
  {
    std::lock_guard lock(state_->mutex);
    round = state_->round;
    // The smallest free block that is large enough, unless more than half of it would lie idle.
    const auto found = state_->free.lower_bound({device.index(), bytes});
    const bool fits = found != state_->free.end() && found->first.first == device.index() &&
                      found->first.second <= 2 * bytes;
    if (fits) {
      block = std::move(found->second.memory);
      state_->free.erase(found);
    } else {
      ++state_->allocations;
      state_->bytes_held += bytes;
    }
    state_->bytes_in_use += block.defined() ? block.numel() : bytes;
    state_->peak_bytes_in_use = std::max(state_->peak_bytes_in_use, state_->bytes_in_use);
  }
  if (!block.defined()) block = at::empty({bytes}, options.dtype(at::kByte));
  auto give_back = [state = state_, block, round, index = device.index()](void*) {
    std::lock_guard lock(state->mutex);
    state->bytes_in_use -= block.numel();
    state->free.emplace(std::make_pair(index, block.numel()), State::Block{block, round});
  };
  if (device.is_meta()) return without_memory(sizes, dtype, std::move(give_back));
  return at::from_blob(block.data_ptr(), sizes, std::move(give_back), options, device);
}

void BufferPool::trim() {
  std::lock_guard lock(state_->mutex);
  std::erase_if(state_->free, [&](const auto& entry) {
    if (entry.second.round >= state_->round) return false;
    state_->bytes_held -= entry.first.second;
    return true;
  });
  ++state_->round;
}

int64_t BufferPool::allocations() const {
  std::lock_guard lock(state_->mutex);
  return state_->allocations;
}

int64_t BufferPool::bytes_held() const {
  std::lock_guard lock(state_->mutex);
  return state_->bytes_held;
}

int64_t BufferPool::peak_bytes_in_use() const {
  std::lock_guard lock(state_->mutex);
  return state_->peak_bytes_in_use;
}

}  // namespace distca
