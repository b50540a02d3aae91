// What the tests of this room share: random attention problems, and how far two results are apart.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "hwy/targets.h"
#include "kernel/attention.h"
#include "kernel/bfloat16.h"
#include "kernel/reference.h"

namespace distca::testing {

/// A batch with its tensors and results. Tensors hold standard normal values.
template <typename T>
struct Problem {
  AttentionShape shape;
  std::vector<KernelTask> tasks;
  int64_t q_rows = 0, kv_rows = 0, o_rows = 0;
  std::vector<T> q, k, v, dout, o;
  std::vector<Accumulator<T>> lse, delta, dq, dk, dv;

  AttentionForward<T> forward() { return {shape, tasks, q.data(), k.data(), v.data(), o.data(), lse.data()}; }
  AttentionBackward<T> backward() {
    return {shape,        tasks,  q.data(), k.data(),  v.data(),  dout.data(), lse.data(),
            delta.data(), q_rows, kv_rows,  dq.data(), dk.data(), dv.data()};
  }
};

inline AttentionShape make_shape(int64_t heads, int64_t kv_heads, int64_t head_dim,
                                 int64_t window_left = kNoWindow) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<double>(head_dim)), window_left};
}

/// All of one document, at the first rows.
inline KernelTask document(int64_t length) {
  return {.q_len = length, .kv_len = length};
}

/// Buffers as large as the tasks ask for. Results start as NaN, so that a row that isn't written shows.
template <typename T>
Problem<T> make_problem(const AttentionShape& shape, std::vector<KernelTask> tasks, uint64_t seed) {
  Problem<T> p;
  p.shape = shape;
  p.tasks = std::move(tasks);
  for (const KernelTask& task : p.tasks) {
    p.q_rows = std::max(p.q_rows, task.q_row + task.q_len);
    p.kv_rows = std::max(p.kv_rows, task.kv_row + task.kv_len);
    p.o_rows = std::max(p.o_rows, task.o_row + task.q_len);
  }
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](std::vector<T>& x, int64_t n) {
    x.resize(n);
    for (T& value : x) value = store<T>(static_cast<Accumulator<T>>(normal(random)));
  };
  const int64_t q_size = p.q_rows * shape.heads * shape.head_dim;
  const int64_t kv_size = p.kv_rows * shape.kv_heads * shape.head_dim;
  fill(p.q, q_size);
  fill(p.k, kv_size);
  fill(p.v, kv_size);
  fill(p.dout, q_size);
  constexpr auto kNan = std::numeric_limits<Accumulator<T>>::quiet_NaN();
  p.o.assign(p.o_rows * shape.heads * shape.head_dim, store<T>(kNan));
  p.lse.assign(p.o_rows * shape.heads, kNan);
  p.delta.assign(p.q_rows * shape.heads, kNan);
  p.dq.assign(q_size, kNan);
  p.dk.assign(kv_size, kNan);
  p.dv.assign(kv_size, kNan);
  return p;
}

/// δ = Σ dO·O where O is numbered as Q is.
template <typename T>
void fill_delta(Problem<T>& p) {
  const int64_t dim = p.shape.head_dim;
  for (size_t row = 0; row < p.delta.size(); ++row) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      sum += static_cast<double>(load(p.dout[row * dim + d])) * load(p.o[row * dim + d]);
    }
    p.delta[row] = static_cast<Accumulator<T>>(sum);
  }
}

/// The same problem with its inputs converted; results NaN.
template <typename To, typename From>
Problem<To> convert(const Problem<From>& from) {
  Problem<To> to = make_problem<To>(from.shape, from.tasks, 0);
  const auto copy = [](const std::vector<From>& x, std::vector<To>& y) {
    for (size_t i = 0; i < x.size(); ++i) y[i] = store<To>(static_cast<Accumulator<To>>(load(x[i])));
  };
  copy(from.q, to.q);
  copy(from.k, to.k);
  copy(from.v, to.v);
  copy(from.dout, to.dout);
  return to;
}

/// Runs `body` with the CPU kernel compiled for one instruction set (a HWY_… target); false where this
/// machine lacks it.
template <typename Body>
bool with_target(int64_t target, const Body& body) {
  if ((hwy::SupportedTargets() & target) == 0) return false;
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  body();
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

/// Largest difference over the largest entry of `expected`. Equal infinities differ by 0; NaN is infinitely
/// far from everything.
template <typename X, typename Y>
double error(const std::vector<X>& actual, const std::vector<Y>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = load(actual[i]), e = load(expected[i]);
    if (a == e) {
      if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
      continue;
    }
    if (!std::isfinite(a) || !std::isfinite(e)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(a - e));
    largest = std::max(largest, std::abs(e));
  }
  return difference == 0 ? 0 : difference / largest;
}

}  // namespace distca::testing
