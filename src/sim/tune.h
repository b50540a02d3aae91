// The search for how a cluster should divide the work: degrees, nano-batches, tolerance and memory, with what
// each choice costs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/study.h"

namespace distca {

struct TuneCandidate {
  ClusterSetup setup;
  PolicyChoice choice;
  double seconds = 0;  // mean over draws
  double memory = 0;   // of the fullest device, worst draw
  bool fits = false;

  std::string name() const;
};

struct Tuning {
  std::vector<TuneCandidate> baselines;   // best of each tp and pp, fastest first
  std::vector<TuneCandidate> cad;         // one a tp and pp, fastest first
  std::vector<TuneCandidate> variations;  // of the best disaggregated one, one setting changed each
  TuneCandidate best_baseline, best;
  StepResult baseline_step, step;  // of the first draw
};

/// Documents of some draws for a set-up; the tokens of a step stay, their division into parts doesn't.
using DrawDocuments = std::function<std::vector<StepDocuments>(const ClusterSetup&)>;

/// Tries every tensor-parallel degree of a node and up to eight pipeline stages, with `base`'s tokens,
/// context and gpus. Throws InputError when nothing fits in memory.
Tuning tune(const ClusterSetup& base, const DrawDocuments& documents, const StudyProgress& progress = {});

/// One page: what to choose, why, and what it brings over the best baseline.
std::string tuning_text(const Tuning& tuning);
std::string tuning_json(const Tuning& tuning);

}  // namespace distca
