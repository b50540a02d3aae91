// For tests: every way in which a small run can be split over eight ranks, and what it must agree with.
#pragma once

#include <string>
#include <vector>

#include "train/testing.h"

namespace distca::testing {

struct ExactMode {
  std::string overlap = "pingpong", memory = "keep";
  int64_t tp = 1, pp = 1, servers = 0;
  std::string layout = "fixed";
  int64_t micro_batches = 1;
  std::string recompute = "none", schedule = "same_phase";
  std::vector<double> stage_layers = {};
  std::string policy = "cad";
  int64_t cp = 1;
  bool graphs = false;

  /// The most ranks, up to eight, with a power of two of them in data parallel; 0 where the mode needs more.
  int32_t ranks() const;
  int32_t dp() const;
  std::string name() const;  // "pingpong, keep, tp 2, pp 1, servers 0, fixed, 3 micro-batches on 8 ranks"
};

/// {pingpong, single} × {keep, resend} × {tp 1, 2} × {pp 1, 2, 4} × {servers 0, 1} × {fixed, free} ×
/// {micro-batches 1, 3}, those that fit.
std::vector<ExactMode> all_exact_modes();

/// Three steps of a model of 4 layers and hidden size 64 in which documents lie over three ranks and more
/// where there are four in data parallel.
RunInputs exact_run(const ExactMode& mode, const std::string& dtype);

/// How far a run is from the dense model's: the largest difference of a loss, and of a gradient in the norm
/// of its parameter's.
struct Distance {
  double loss = 0, gradient = 0;
};
Distance distance(const RunResult& run, const RunResult& dense);

}  // namespace distca::testing
