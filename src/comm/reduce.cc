#include "comm/reduce.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace distca {
namespace {

constexpr int64_t kBlock = 1024;  // elements kept in the nearest cache while all sources are added

template <typename T>
T larger(T a, T b) {
  return a < b || b != b ? b : a;
}

template <typename T>
void reduce(std::span<const void* const> sources, void* out, int64_t count, ReduceOp op) {
  std::array<T, kBlock> total;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    const auto block = [&](const void* data) { return static_cast<const T*>(data) + begin; };
    std::copy_n(block(sources[0]), size, total.data());
    for (const void* source : sources.subspan(1)) {
      const T* values = block(source);
      if (op == ReduceOp::kSum) {
        for (int64_t i = 0; i < size; ++i) total[i] += values[i];
      } else {
        for (int64_t i = 0; i < size; ++i) total[i] = larger(total[i], values[i]);
      }
    }
    std::copy_n(total.data(), size, static_cast<T*>(out) + begin);
  }
}

}  // namespace

int64_t bytes_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 8;
}

std::string name_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat64 ? "float64" : "int64";
}

void reduce_in_rank_order(std::span<const void* const> sources, void* out, int64_t count, DType dtype,
                          ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce<float>(sources, out, count, op);
    case DType::kFloat64:
      return reduce<double>(sources, out, count, op);
    case DType::kInt64:
      return reduce<int64_t>(sources, out, count, op);
  }
}

int64_t slice_begin(int64_t count, int64_t slices, int64_t index) {
  return count / slices * index + std::min(index, count % slices);
}

}  // namespace distca
