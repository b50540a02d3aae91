// A simulated cluster as one page for the browser: no script, no network, light and dark.
#pragma once

#include <string>
#include <vector>

#include "sim/study.h"

namespace distca {

/// A cluster of another size with as many tokens a device: what the base and disaggregation take.
struct ScalePoint {
  int64_t gpus = 0;
  double base_seconds = 0, cad_seconds = 0, balanced_seconds = 0;
};

/// Halves and doubles the cluster around the study's, one draw each, where the set-up allows it.
std::vector<ScalePoint> scale_points(const Study& study, const PolicyChoice& base, const PolicyChoice& cad,
                                     Distribution distribution, uint64_t seed);

struct ReportInputs {
  const Study* study = nullptr;
  size_t base = 0, cad = 0;            // rows that are compared rank by rank
  StepDetail base_detail, cad_detail;  // of the first draw
  std::vector<ScalePoint> scale;
};

/// Policies as a table and as bars of where the step's time goes; load and memory of each rank before and
/// after; timelines of a few layers; the bytes between ranks; speed-up against scale.
std::string report_page(const ReportInputs& inputs);

}  // namespace distca
