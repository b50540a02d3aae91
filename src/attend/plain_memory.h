// Tensors on the CPU as the plain memory that kernel/ works on. Only what calls kernel/ sees this.
#pragma once

#include <type_traits>

#include "attend/rows.h"
#include "base/check.h"
#include "kernel/attention.h"

namespace distca {

/// The memory of a pair of contiguous tensors on the CPU, of T's element type. Throws Error where they aren't
/// contiguous.
template <typename T>
TensorRows<T> tensor_rows(const RowPair& pair) {
  const auto data = [](const at::Tensor& tensor) -> T* {
    DISTCA_CHECK(tensor.is_contiguous(), "rows of a tensor of shape {} aren't contiguous", tensor.sizes());
    if constexpr (std::is_const_v<T>) {
      return static_cast<T*>(tensor.const_data_ptr());
    } else {
      return static_cast<T*>(tensor.data_ptr());
    }
  };
  if (!pair.second.defined()) return data(pair.first);
  return {data(pair.first), pair.first.size(0), data(pair.second)};
}

/// Calls body with a value of the C++ type behind `dtype`.
template <typename Body>
void for_element_type(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) {
    body(float());
  } else if (dtype == at::kDouble) {
    body(double());
  } else {
    DISTCA_CHECK_INPUT(dtype == at::kBFloat16, "attention on CPUs takes float32, float64 or bfloat16, not {}",
                       dtype);
    body(BFloat16());
  }
}

}  // namespace distca
