// Measures one disaggregated attention layer on a plan: what is planned and sent, how long each step takes,
// and how far the result is from one rank's dense attention.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/fabric.h"
#include "kernel/attention.h"
#include "plan/plan.h"

namespace distca {

struct LayerBenchOptions {
  AttentionShape shape;
  at::Device device = at::kCPU;
  std::string dtype = "float32";  // float64, bfloat16
  std::string kernel = "auto";
  bool keep = false;  // else resend
  int repeats = 3;
  bool check = true;  // against PyTorch's attention, document by document, on rank 0
  uint64_t seed = 1;
};

/// Seconds of one step on the slowest and the average rank, each rank's median over the repeats. CPU time of
/// the rank's thread, or time of its device; `wait` is wall time in which a rank had nothing else to do.
struct StepSeconds {
  std::string step;  // "forward/dispatch", …
  double max_s = 0, mean_s = 0;
  double wait_max_s = 0;
};

struct KindBytes {
  std::string kind;  // "forward/q", …
  int64_t bytes = 0;
};

struct LayerBenchResult {
  std::vector<StepSeconds> steps;
  std::vector<KindBytes> sent;  // by all ranks, in one forward and backward
  /// Largest deviation from the dense result over its largest entry; empty without a check.
  struct MaxError {
    std::string tensor;
    double value = 0;
  };
  std::vector<MaxError> errors;
  int64_t pool_bytes = 0;  // buffers of the fullest rank
};

/// Runs this rank's part; every rank of the fabric calls it and gets the same result.
LayerBenchResult bench_layer(Fabric& fabric, const Plan& plan, const LayerBenchOptions& options);

}  // namespace distca
