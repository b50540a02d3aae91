// How well recorded iterations were predicted: errors by kind of row, whether the fastest policy and the
// order of any two rows came out right.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/recorded_fit.h"

namespace distca {

inline constexpr std::array kRecordedClasses = {RecordedClass::kFit, RecordedClass::kHeld,
                                                RecordedClass::kFew, RecordedClass::kPipeline};
std::string name_of(RecordedClass kind);

/// Relative errors |predicted ÷ measured - 1|.
struct RecordedErrors {
  RecordedClass kind = RecordedClass::kFit;
  int64_t rows = 0;
  double median = 0, worst = 0;
  double worst_spreads = 0;  // largest |predicted - measured| in spreads of the prediction
};

/// Rows that differ in policy and degree alone.
struct RecordedGroup {
  std::string name;
  std::string measured, predicted;  // fastest policies
  double lead = 0;                  // measured: the second policy's best ÷ the fastest's - 1
};

struct RecordedReport {
  std::vector<RecordedErrors> errors;  // of kinds that have rows with measurements
  std::vector<RecordedGroup> groups;   // of rows without pipeline, with at least two policies
  int64_t pairs = 0, right_pairs = 0;  // of a group's rows, measured at least 5% apart
};

RecordedReport report_recorded(const std::vector<RecordedRow>& rows,
                               const std::vector<RecordedPrediction>& predictions);

/// A table of rows and the report as text.
std::string recorded_text(const std::vector<RecordedRow>& rows,
                          const std::vector<RecordedPrediction>& predictions, const RecordedReport& report);

/// {"rows": [the row's own columns, "predicted_ms", "spread_ms", "error", "class"], "errors", "fastest",
/// "order"}.
std::string recorded_json(const std::vector<RecordedRow>& rows,
                          const std::vector<RecordedPrediction>& predictions, const RecordedReport& report);

}  // namespace distca
