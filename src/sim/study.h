// A comparison of policies on a cluster over several draws of documents, as a table, as JSON and as sums.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/distribution.h"
#include "sim/step.h"

namespace distca {

/// Mean and standard deviation over draws.
struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread_of(const std::vector<double>& values);

struct StudyRow {
  PolicyChoice choice;
  std::vector<StepResult> draws;
  Spread seconds;
  double speedup = 1;  // mean over draws of the first row's seconds ÷ this row's
  bool fits = true;    // in a device's memory, in every draw

  /// Mean over draws of a figure.
  double mean(const std::function<double(const StepResult&)>& figure) const;
};

struct Study {
  ClusterSetup setup;
  std::vector<StudyRow> rows;
  double flops = 0;     // of a step, mean over draws
  double balanced = 0;  // the bound's seconds, mean over draws

  /// Model flops ÷ (seconds · gpus · peak flops).
  double flops_utilization(double seconds) const;
};

/// Called after each step that was simulated.
using StudyProgress = std::function<void(int64_t done, int64_t all)>;

Study run_study(const ClusterSetup& setup, const std::vector<PolicyChoice>& choices,
                const std::vector<StepDocuments>& draws, const StudyProgress& progress = {});

std::string study_text(const Study& study);
/// {"setup", "rows": [{"policy", "iteration_s", "spread_s", …}], "balanced_s"}, as text.
std::string study_json(const Study& study);

/// Documents of one step, drawn as the field's experiments draw them (plan/distribution.h).
StepDocuments drawn_documents(const ClusterSetup& setup, Distribution distribution, uint64_t seed);

/// The first `steps` steps of a run that takes its documents as the recorded runs did: "prolong"'s long ones
/// first (sim/recorded_documents.h).
std::vector<StepDocuments> recorded_steps(const ClusterSetup& setup, Distribution distribution, int64_t steps,
                                          uint64_t seed);

/// Steps made of given documents, one after the other; those that a chunk's end cuts go on as other
/// documents. Begins anew when documents run out. Throws InputError that names a document longer than the
/// context.
std::vector<StepDocuments> packed_documents(const ClusterSetup& setup, const std::vector<int64_t>& lengths,
                                            int64_t steps, const std::string& origin);

}  // namespace distca
