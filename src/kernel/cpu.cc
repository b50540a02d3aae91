#include "kernel/cpu.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernel/cpu_tiles.h"
#include "kernel/schedule.h"

namespace distca {

int64_t second_level_cache_bytes() {
  static const int64_t bytes = [] {
    const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);  // NOLINT(google-runtime-int): its type
    return std::clamp<int64_t>(known, 1 << 20, 2 << 20);
  }();
  return bytes;
}

namespace {

/// Hands the loop over by reference: a std::function would allocate a copy.
template <typename Body>
void run_loop(ThreadPool& pool, int64_t count, const Body& body) {
  pool.run(count, std::cref(body));
}

}  // namespace

template <typename T>
void cpu_attention_forward(const AttentionForward<T>& args, ThreadPool& pool) {
  args.shape.check();
  thread_local ForwardSchedule schedule;
  schedule_forward(args.shape, args.tasks, forward_lanes(args.shape, sizeof(Accumulator<T>)), pool.threads(),
                   schedule);
  const ForwardSchedule& work = schedule;
  run_loop(pool, static_cast<int64_t>(work.chunks.size()), [&](int64_t i, int) {
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

/// Zeroes the rows that no segment writes.
template <typename A>
void clear_untouched(const GradientRuns& gradients, A* to, int64_t columns) {
  for (const RowTarget& rows : gradients.untouched) {
    std::fill(to + rows.begin * columns, to + rows.end * columns, A(0));
  }
}

/// Adds private copies to the rows of a result in the order of segments.
template <typename A>
void add_private(const GradientRuns& gradients, const A* from, A* to, int64_t rows, int64_t columns,
                 ThreadPool& pool) {
  if (gradients.private_rows == 0) return;
  run_loop(pool, iterations(rows), [&](int64_t i, int) {
    for (const RowTarget& run : gradients.runs) {
      if (run.private_row < 0) continue;
      const int64_t begin = std::max(i * kRowsAtOnce, run.begin);
      const int64_t end = std::min((i + 1) * kRowsAtOnce, run.end);
      if (begin >= end) continue;
      const A* x = from + run.row(begin) * columns;
      A* y = to + begin * columns;
      for (int64_t c = 0; c < (end - begin) * columns; ++c) y[c] += x[c];
    }
  });
}

/// Segments that the work of one key/value head is cut into: about 16 for all heads, where there is enough of
/// it. Not a function of the threads, so that they don't change the order of sums.
int64_t segments_of_head(const AttentionShape& shape, std::span<const KernelTask> tasks) {
  constexpr int64_t kSegments = 16, kLeastPairs = 2 << 20;
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
  thread_local BackwardSchedule schedule;
  thread_local std::vector<A> memory;
  schedule_backward(shape, args.tasks, args.q_rows, args.kv_rows, segments_of_head(shape, args.tasks),
                    backward_lanes(shape, sizeof(A)), schedule);
  const BackwardSchedule& work = schedule;
  const int64_t q_size = work.q.private_rows * q_columns, kv_size = work.kv.private_rows * kv_columns;
  if (static_cast<int64_t>(memory.size()) < q_size + 2 * kv_size) memory.resize(q_size + 2 * kv_size);
  const PrivateGradients<A> privates{memory.data(), memory.data() + q_size, memory.data() + q_size + kv_size};

  clear_untouched(work.q, args.dq, q_columns);
  clear_untouched(work.kv, args.dk, kv_columns);
  clear_untouched(work.kv, args.dv, kv_columns);
  run_loop(pool, work.segments() * shape.kv_heads, [&](int64_t i, int) {
    backward_segment(args, work, i % work.segments(), i / work.segments(), privates);
  });
  add_private(work.q, privates.dq, args.dq, args.q_rows, q_columns, pool);
  add_private(work.kv, privates.dk, args.dk, args.kv_rows, kv_columns, pool);
  add_private(work.kv, privates.dv, args.dv, args.kv_rows, kv_columns, pool);
}

template void cpu_attention_forward(const AttentionForward<float>&, ThreadPool&);
template void cpu_attention_forward(const AttentionForward<double>&, ThreadPool&);
template void cpu_attention_forward(const AttentionForward<BFloat16>&, ThreadPool&);
template void cpu_attention_backward(const AttentionBackward<float>&, ThreadPool&);
template void cpu_attention_backward(const AttentionBackward<double>&, ThreadPool&);
template void cpu_attention_backward(const AttentionBackward<BFloat16>&, ThreadPool&);

}  // namespace distca
