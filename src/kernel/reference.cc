#include "kernel/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernel/bfloat16.h"

namespace distca {
namespace {

/// Σ a_i b_i in eight sums, which the compiler keeps in vector registers.
template <typename T>
Accumulator<T> dot(const T* a, const T* b, int64_t n) {
  constexpr int kSums = 8;
  Accumulator<T> sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int s = 0; s < kSums; ++s) sums[s] += load(a[i + s]) * load(b[i + s]);
  }
  Accumulator<T> sum = 0;
  for (; i < n; ++i) sum += load(a[i]) * load(b[i]);
  for (int s = 0; s < kSums; ++s) sum += sums[s];
  return sum;
}

/// y += a x
template <typename T>
void add_scaled(Accumulator<T>* y, Accumulator<T> a, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * load(x[i]);
}

/// Calls body(task, query, head) for every query row and head, in that order.
template <typename Args, typename Body>
void for_each_row(const Args& args, const Body& body) {
  args.shape.check();
  for (const KernelTask& task : args.tasks) {
    for (int64_t query = 0; query < task.q_len; ++query) {
      for (int64_t head = 0; head < args.shape.heads; ++head) body(task, query, head);
    }
  }
}

/// The key/value head of a query head in a key's row.
template <typename T>
const T* key_row(const TensorRows<const T>& rows, const AttentionShape& shape, const KernelTask& task,
                 int64_t key, int64_t head) {
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  return rows.row(task.kv_row + key, shape.kv_heads * shape.head_dim) + kv_head * shape.head_dim;
}

}  // namespace

template <typename T>
void reference_attention_forward(const AttentionForward<T>& args) {
  using A = Accumulator<T>;
  const AttentionShape& shape = args.shape;
  std::vector<A> p, o(shape.head_dim);
  for_each_row(args, [&](const KernelTask& task, int64_t query, int64_t head) {
    const int64_t dim = shape.head_dim;
    const T* q = args.q.row(task.q_row + query, shape.heads * dim) + head * dim;
    const auto [begin, end] = visible_keys(task, query, shape.window_left);
    p.resize(end - begin);
    A max = -std::numeric_limits<A>::infinity();
    for (int64_t key = begin; key < end; ++key) {
      const A s = A(shape.scale) * dot(q, key_row(args.k, shape, task, key, head), dim);
      p[key - begin] = s;
      max = std::max(max, s);
    }
    A sum = 0;
    for (A& s : p) sum += s = std::exp(s - max);
    std::fill(o.begin(), o.end(), A(0));
    for (int64_t key = begin; key < end; ++key) {
      add_scaled(o.data(), p[key - begin], key_row(args.v, shape, task, key, head), dim);
    }
    args.lse.row(task.o_row + query, shape.heads)[head] = max + std::log(sum);
    T* out = args.o.row(task.o_row + query, shape.heads * dim) + head * dim;
    for (int64_t i = 0; i < dim; ++i) out[i] = store<T>(sum > 0 ? o[i] / sum : A(0));
  });
}

template <typename T>
void reference_attention_backward(const AttentionBackward<T>& args) {
  using A = Accumulator<T>;
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  std::fill_n(args.dq, args.q_rows * shape.heads * dim, A(0));
  std::fill_n(args.dk, args.kv_rows * shape.kv_heads * dim, A(0));
  std::fill_n(args.dv, args.kv_rows * shape.kv_heads * dim, A(0));
  for_each_row(args, [&](const KernelTask& task, int64_t query, int64_t head) {
    const int64_t row = (task.q_row + query) * shape.heads + head;
    const int64_t q_row = task.q_row + query, columns = shape.heads * dim;
    const A lse = args.lse.row(q_row, shape.heads)[head], delta = args.delta.row(q_row, shape.heads)[head];
    if (lse == -std::numeric_limits<A>::infinity()) return;
    const T* q = args.q.row(q_row, columns) + head * dim;
    const T* dout = args.dout.row(q_row, columns) + head * dim;
    const auto [begin, end] = visible_keys(task, query, shape.window_left);
    for (int64_t key = begin; key < end; ++key) {
      const int64_t kv_head = head / (shape.heads / shape.kv_heads);
      const int64_t at = ((task.kv_row + key) * shape.kv_heads + kv_head) * dim;
      const T* k = key_row(args.k, shape, task, key, head);
      const A p = std::exp(A(shape.scale) * dot(q, k, dim) - lse);
      const A ds = A(shape.scale) * p * (dot(dout, key_row(args.v, shape, task, key, head), dim) - delta);
      add_scaled(args.dq + row * dim, ds, k, dim);
      add_scaled(args.dk + at, ds, q, dim);
      add_scaled(args.dv + at, p, dout, dim);
    }
  });
}

template void reference_attention_forward(const AttentionForward<float>&);
template void reference_attention_forward(const AttentionForward<double>&);
template void reference_attention_forward(const AttentionForward<BFloat16>&);
template void reference_attention_backward(const AttentionBackward<float>&);
template void reference_attention_backward(const AttentionBackward<double>&);
template void reference_attention_backward(const AttentionBackward<BFloat16>&);

}  // namespace distca
