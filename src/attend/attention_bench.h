// How fast the CPU kernel is: rates in floating-point operations per second over the pairs that the causal
// mask leaves (4 · head_dim each forward, 10 backward), as ratios to peers that are measured interleaved with
// it in the same run.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace distca {

struct BenchRow {
  std::string name;  // "attention/forward/q512/kv4096/d64/gqa4/t1"
  double value = 0;  // GFLOP/s; a ratio of rates for scaling rows
  std::string unit;
  std::string baseline;  // "at::mm", "pytorch", …
  double ratio = 0;      // our rate ÷ the baseline's
};

struct AttentionBench {
  std::string target, blas;
  double multiply_add = 0;   // GFLOP/s of a register-only loop, one thread
  double product = 0;        // of at::mm of 1536³, one thread
  double product_share = 0;  // median of product ÷ multiply_add, side by side
  std::vector<BenchRow> rows;
};

/// Ratios to at::mm mean little when other programs keep it from its own rate.
inline constexpr double kLeastProductShare = 0.7;

struct AttentionBenchOptions {
  bool quick = false;  // fewer shapes, 5 ratios instead of 15
  std::string only;    // shapes whose name contains this
};

/// `report` sees every row as it is measured. Throws InputError when no shape is wanted.
AttentionBench bench_attention(const AttentionBenchOptions& options,
                               const std::function<void(const BenchRow&)>& report);

}  // namespace distca
