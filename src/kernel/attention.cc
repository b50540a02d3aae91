#include "kernel/attention.h"

#include "base/check.h"

namespace distca {

void AttentionShape::check() const {
  DISTCA_CHECK_INPUT(heads > 0 && kv_heads > 0 && head_dim > 0,
                     "attention of {} heads, {} key/value heads and head_dim {}: all three must be positive",
                     heads, kv_heads, head_dim);
  DISTCA_CHECK_INPUT(
      heads % kv_heads == 0,
      "{} query heads can't share {} key/value heads: the first must be a multiple of the second", heads,
      kv_heads);
  DISTCA_CHECK_INPUT(window_left >= 0, "a sliding window of {} keys to the left: it must not be negative",
                     window_left);
}

}  // namespace distca
