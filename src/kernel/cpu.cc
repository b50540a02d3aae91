#include "kernel/cpu.h"

#include <algorithm>
#include <vector>

#include "kernel/cpu_tiles.h"
#include "kernel/schedule.h"

namespace distca {

template <typename T>
void cpu_attention_forward(const AttentionForward<T>& args, ThreadPool& pool) {
  args.shape.check();
  thread_local ForwardSchedule schedule;
  schedule_forward(args.shape, args.tasks, forward_lanes(args.shape, sizeof(Accumulator<T>)), pool.threads(),
                   schedule);
  const ForwardSchedule& work = schedule;
  pool.run(static_cast<int64_t>(work.chunks.size()), [&args, &work](int64_t i, int) {
    const auto& chunk = work.chunks[i];
    forward_tiles(args, std::span(work.tiles).subspan(chunk.begin, chunk.end - chunk.begin));
  });
}

namespace {

/// Rows that one iteration of a loop over whole gradients handles.
constexpr int64_t kRowsAtOnce = 512;

int64_t iterations(int64_t rows) {
  return (rows + kRowsAtOnce - 1) / kRowsAtOnce;
}

/// Zeroes `rows` rows of `columns`.
template <typename A>
void clear_rows(A* to, int64_t rows, int64_t columns, ThreadPool& pool) {
  pool.run(iterations(rows), [=](int64_t i, int) {
    const int64_t begin = i * kRowsAtOnce, end = std::min(rows, begin + kRowsAtOnce);
    std::fill(to + begin * columns, to + end * columns, A(0));
  });
}

/// Adds private copies to the rows of a result in the order of `targets`.
template <typename A>
void add_private(const std::vector<RowTarget>& targets, const A* from, A* to, int64_t rows, int64_t columns,
                 ThreadPool& pool) {
  if (targets.empty()) return;
  pool.run(iterations(rows), [=, &targets](int64_t i, int) {
    for (const RowTarget& target : targets) {
      const int64_t begin = std::max(i * kRowsAtOnce, target.begin);
      const int64_t end = std::min((i + 1) * kRowsAtOnce, target.end);
      if (begin >= end) continue;
      const A* x = from + target.row(begin) * columns;
      A* y = to + begin * columns;
      for (int64_t c = 0; c < (end - begin) * columns; ++c) y[c] += x[c];
    }
  });
}

/// Segments that the work of one key/value head is cut into: about 16 for all heads, where there is enough of
/// it. Not a function of the threads, so that they don't change the order of sums.
int64_t segments_of_head(const AttentionShape& shape, std::span<const KernelTask> tasks) {
  constexpr int64_t kSegments = 16, kLeastPairs = 1 << 20;
  int64_t pairs = 0;
  for (const KernelTask& task : tasks) pairs += visible_pairs(task, 0, task.q_len, shape.window_left);
  pairs *= shape.heads / shape.kv_heads;
  return std::clamp<int64_t>(pairs / kLeastPairs, 1, (kSegments + shape.kv_heads - 1) / shape.kv_heads);
}

}  // namespace

template <typename T>
void cpu_attention_backward(const AttentionBackward<T>& args, ThreadPool& pool) {
  using A = Accumulator<T>;
  const AttentionShape& shape = args.shape;
  shape.check();
  const int64_t q_columns = shape.heads * shape.head_dim, kv_columns = shape.kv_heads * shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t lanes = backward_lanes(shape, sizeof(A));
  thread_local BackwardSchedule schedule;
  thread_local std::vector<A> memory;
  schedule_backward(shape, args.tasks, segments_of_head(shape, args.tasks),
                    std::max<int64_t>(1, lanes / group) * group, schedule);
  const BackwardSchedule& work = schedule;
  const int64_t q_size = work.private_q_rows * q_columns, kv_size = work.private_kv_rows * kv_columns;
  if (static_cast<int64_t>(memory.size()) < q_size + 2 * kv_size) memory.resize(q_size + 2 * kv_size);
  const PrivateGradients<A> privates{memory.data(), memory.data() + q_size, memory.data() + q_size + kv_size};

  clear_rows(args.dq, args.q_rows, q_columns, pool);
  clear_rows(args.dk, args.kv_rows, kv_columns, pool);
  clear_rows(args.dv, args.kv_rows, kv_columns, pool);
  clear_rows(privates.dq, work.private_q_rows, q_columns, pool);
  clear_rows(privates.dk, 2 * work.private_kv_rows, kv_columns, pool);
  const auto segments = static_cast<int64_t>(work.segments.size());
  pool.run(segments * shape.kv_heads, [&](int64_t i, int) {
    const auto& segment = work.segments[i % segments];
    backward_pieces(args, std::span(work.pieces).subspan(segment.begin, segment.end - segment.begin),
                    i / segments, privates);
  });
  add_private(work.private_q, privates.dq, args.dq, args.q_rows, q_columns, pool);
  add_private(work.private_kv, privates.dk, args.dk, args.kv_rows, kv_columns, pool);
  add_private(work.private_kv, privates.dv, args.dv, args.kv_rows, kv_columns, pool);
}

template void cpu_attention_forward(const AttentionForward<float>&, ThreadPool&);
template void cpu_attention_forward(const AttentionForward<double>&, ThreadPool&);
template void cpu_attention_forward(const AttentionForward<BFloat16>&, ThreadPool&);
template void cpu_attention_backward(const AttentionBackward<float>&, ThreadPool&);
template void cpu_attention_backward(const AttentionBackward<double>&, ThreadPool&);
template void cpu_attention_backward(const AttentionBackward<BFloat16>&, ThreadPool&);

}  // namespace distca
