// How fast core attention is on a device that computes many things at once, and whether it stays so when it
// is cut: one call over many short tasks beside one long document of as many pairs.
#pragma once

#include "attend/attention_bench.h"
#include "attend/packed_tasks.h"

namespace distca {

/// Names are as bench_attention() has them, without threads: "attention/forward/doc16384/d128/gqa4" beside
/// at::mm, and "attention/forward/tasks512/q128/kv4096/d128/gqa4" beside at::mm and "one document". Times are
/// the device's own. A call has at most `most_keys` key rows. `multiply_add` stays 0.
AttentionBench bench_attention_on(at::Device device, const AttentionBenchOptions& options,
                                  const std::function<void(const BenchRow&)>& report,
                                  int64_t most_keys = int64_t{1} << 21);

}  // namespace distca
