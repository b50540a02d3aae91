// Prediction of recorded iterations: a table of runs that were measured on clusters, each predicted from its
// configuration alone. What holds there is what makes a simulated cluster believable.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/distribution.h"
#include "sim/device_profile.h"
#include "sim/model_shape.h"
#include "sim/step_costs.h"

namespace distca {

/// A row of the table. Nodes have 8 devices, which are one tensor-parallel group.
struct RecordedRow {
  std::string model, policy, dataset;  // policy: cad, wlb (WLB-LLM) or cp (per sequence: our cp-seq)
  int64_t nodes = 0, batch = 0, micro_batches = 0, chunk_tokens = 0, cp = 0, pp = 0, samples = 0;
  double ms = 0;                                             // measured; 0 where the table has no such column
  std::vector<std::pair<std::string, std::string>> columns;  // the row as it stands in the table
};

/// Tab-separated with a line of column names; lines that begin with # are skipped. Needs the columns model,
/// nodes, batch, microbatches, num_tokens, policy, cp, pp, dataset and samples; ms is optional. Throws
/// InputError with origin, line and column.
std::vector<RecordedRow> parse_recorded(std::string_view text, const std::string& origin);

/// One iteration's work of one layer in each data-parallel group: its slowest rank counts.
struct IterationWork {
  struct Group {
    double tokens, attention, gathered;
  };
  std::vector<Group> groups;
};

/// The work of a row: draws of its documents, each with `samples` iterations.
struct RecordedWork {
  std::vector<std::vector<IterationWork>> draws;
};

/// Draws documents for rows; rows of one data set and chunk share them, so they are drawn once.
class RecordedDraws {
 public:
  /// 16 draws, 100 where a row averages fewer than 10 iterations.
  RecordedWork work_of(const RecordedRow& row, double startup_keys);

 private:
  const std::vector<int64_t>& documents(Distribution distribution, int64_t chunk_tokens, int64_t draw);

  std::map<std::tuple<Distribution, int64_t, int64_t>, std::vector<int64_t>> documents_;
};

struct RecordedPrediction {
  double ms = 0;         // mean over draws
  double spread_ms = 0;  // standard deviation over draws of a mean of `samples` iterations
};

/// Layers · the slowest group's seconds + the update, averaged over iterations and draws. With pp > 1:
/// balanced attention, stretched by the bubble (micro-batches + pp - 1) ÷ micro-batches; recorded pipelines
/// are not explained by it.
RecordedPrediction predict_recorded(const RecordedRow& row, const RecordedWork& work, const ModelShape& model,
                                    const DeviceProfile& profile);

/// The model that a row's name stands for. Throws InputError for a name it doesn't know.
using ModelLookup = std::function<ModelShape(const std::string&)>;

std::vector<RecordedPrediction> predict_recorded(const std::vector<RecordedRow>& rows,
                                                 const ModelLookup& model_of, const DeviceProfile& profile);

}  // namespace distca
