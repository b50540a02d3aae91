#include "kernel/attention.h"

#include <algorithm>

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

KeyRange visible_keys(const KernelTask& task, int64_t query, int64_t window_left) {
  const int64_t position = task.q_pos + query;
  const int64_t first = window_left >= position ? 0 : position - window_left;
  const int64_t begin = std::clamp<int64_t>(first - task.kv_pos, 0, task.kv_len);
  const int64_t end = std::clamp<int64_t>(position + 1 - task.kv_pos, begin, task.kv_len);
  return {begin, end};
}

}  // namespace distca
