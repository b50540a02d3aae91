// Core attention over a batch of CA-tasks on plain memory: one call computes all tasks of a rank.
//
//   forward   S = scale · Q Kᵀ under the causal mask,  LSE = log Σ exp S (natural),  O = softmax(S) V
//   backward  P = exp(S − LSE),  δ = Σ dO·O,  dV = Pᵀ dO,  dS = P ∘ (dO Vᵀ − δ),
//             dQ = scale · dS K,  dK = scale · dSᵀ Q
// (FlashAttention-2, arXiv 2307.08691, sections 2.1 and 3.1.)
//
// The kernel sees rows of buffers and absolute positions, never documents. Tensors are (rows, heads,
// head_dim), contiguous; query head h reads key/value head h / (heads / kv_heads). Offsets are 64-bit. For
// fixed keys a query row's O and LSE bits depend on nothing else in the call: not on other rows or tasks, nor
// on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

namespace distca {

/// Storage only; arithmetic is float32.
struct BFloat16 {
  uint16_t bits = 0;
};

/// What sums, LSE and gradients of an element type are kept in.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Query i of a task reads row q_row + i of Q, stands at position q_pos + i and writes row o_row + i of O and
/// LSE; key j is row kv_row + j of K and V, at position kv_pos + j. A query sees the keys at positions [its
/// own − window_left, its own]. Either length may be 0.
struct KernelTask {
  int64_t q_row = 0, q_len = 0, q_pos = 0;
  int64_t kv_row = 0, kv_len = 0, kv_pos = 0;
  int64_t o_row = 0;
};

inline constexpr int64_t kNoWindow = INT64_MAX;

/// Half-open run of a task's keys, counted from its first.
struct KeyRange {
  int64_t begin = 0, end = 0;
};

/// The keys that query `query` of a task sees; positions are not negative.
inline KeyRange visible_keys(const KernelTask& task, int64_t query, int64_t window_left) {
  const int64_t position = task.q_pos + query;
  const int64_t first = window_left >= position ? 0 : position - window_left;
  const int64_t begin = std::clamp<int64_t>(first - task.kv_pos, 0, task.kv_len);
  const int64_t end = std::clamp<int64_t>(position + 1 - task.kv_pos, begin, task.kv_len);
  return {begin, end};
}

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double scale = 0;  // of the scores; 1/√head_dim is the usual one
  int64_t window_left = kNoWindow;

  /// Throws InputError unless heads is a multiple of kv_heads and all sizes are positive.
  void check() const;
};

/// Rows of a tensor that may stand in two buffers, numbered through: so that what came from elsewhere needn't
/// be copied beside what was here. The rows of a task stand in one of them.
template <typename T>
struct TensorRows {
  T* first = nullptr;
  T* second = nullptr;
  int64_t first_rows = INT64_MAX;

  TensorRows() = default;
  TensorRows(T* all) : first(all) {}  // NOLINT: one buffer is the usual case
  TensorRows(T* first, int64_t first_rows, T* second)
      : first(first), second(second), first_rows(first_rows) {}

  /// Where a row of so many elements begins.
  T* row(int64_t row, int64_t elements) const {
    return row < first_rows ? first + row * elements : second + (row - first_rows) * elements;
  }
};

template <typename T>
struct AttentionForward {
  AttentionShape shape;
  std::span<const KernelTask> tasks;  // output rows of different tasks don't overlap; query rows may
  TensorRows<const T> q;              // (·, heads, head_dim)
  TensorRows<const T> k, v;           // (·, kv_heads, head_dim)
  TensorRows<T> o;                    // (·, heads, head_dim); rows of no task are left alone
  TensorRows<Accumulator<T>> lse;     // (·, heads); −inf and o = 0 where a row sees no key
};

template <typename T>
struct AttentionBackward {
  AttentionShape shape;
  std::span<const KernelTask> tasks;  // o_row is not read: all of the below go by q_row
  TensorRows<const T> q, k, v;
  TensorRows<const T> dout;                // (q_rows, heads, head_dim)
  TensorRows<const Accumulator<T>> lse;    // (q_rows, heads), merged over all keys of the row
  TensorRows<const Accumulator<T>> delta;  // (q_rows, heads), Σ dO·O with the merged O
  int64_t q_rows = 0, kv_rows = 0;
  Accumulator<T>* dq =
      nullptr;  // (q_rows, heads, head_dim): all rows are written, summed over tasks in their order
  Accumulator<T>* dk = nullptr;  // (kv_rows, kv_heads, head_dim)
  Accumulator<T>* dv = nullptr;
};

}  // namespace distca
