#include "plan/task.h"

namespace distca {
namespace {

/// Sum over rows q of clamp(q + 1 - kv.begin, 0, kv.size()).
int64_t causal_pairs(Span q, Span kv) {
  if (q.empty() || kv.empty()) return 0;
  // Rows [q.begin, first) see nothing, rows [first, last) a growing run of keys, rows [last, q.end) all of
  // them.
  const int64_t first = std::clamp(kv.begin, q.begin, q.end);
  const int64_t last = std::clamp(kv.end - 1, first, q.end);
  const int64_t growing = last - first;
  const int64_t keys_of_first = first + 1 - kv.begin;
  return growing * keys_of_first + growing * (growing - 1) / 2 + (q.end - last) * kv.size();
}

/// value × numerator ÷ denominator, rounded up, for value < 2^62 and small factors.
int64_t scaled_up(int64_t value, int64_t numerator, int64_t denominator) {
  const int64_t whole = value / denominator, rest = value % denominator;
  return whole * numerator + (rest * numerator + denominator - 1) / denominator;
}

}  // namespace

int64_t pairs(const Task& task) {
  return causal_pairs(task.q, task.kv);
}

int64_t pairs(const Task& task, int64_t window_left) {
  const int64_t shift = window_left + 1;
  const Span shifted{task.q.begin - shift, task.q.end - shift};
  return causal_pairs(task.q, task.kv) - causal_pairs(shifted, task.kv);
}

int64_t padded_pairs(const Task& task) {
  const int64_t ragged = task.q.size() % kTileRows;
  if (task.q.empty() || ragged == 0) return causal_pairs(task.q, task.kv);
  const int64_t edge = task.q.end - ragged;
  return causal_pairs({task.q.begin, edge}, task.kv) +
         scaled_up(causal_pairs({edge, task.q.end}, task.kv), kTileRows, ragged);
}

}  // namespace distca
