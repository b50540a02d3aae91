// The fit of a profile's constants to recorded iterations.
#pragma once

#include <vector>

#include "sim/recorded.h"

namespace distca {

/// Kinds of rows: which are fitted, and which only judge.
enum class RecordedClass {
  kFit,       // prolong, no pipeline, 10 samples or more
  kHeld,      // wlbllm, no pipeline, 10 samples or more: not fitted
  kFew,       // no pipeline, fewer than 10 samples: limited by the draw of documents
  kPipeline,  // not explained
};
RecordedClass class_of(const RecordedRow& row);

/// `profile` with the constants that make √(error² + 1%²), summed over the rows to fit, least: linear
/// efficiency, attention rate, gather rate, update and planner's excess. The start-up keys stay: kernel times
/// fix them. Deterministic; the same from any profile with equal peak, links and start-up keys. Throws
/// InputError when there are fewer than 10 rows to fit.
DeviceProfile fit_recorded(const std::vector<RecordedRow>& rows, const ModelLookup& model_of,
                           const DeviceProfile& profile);

}  // namespace distca
