// Where the time of a run goes. Every rank counts its seconds by kind of work, which end the run as a table;
// in chosen steps it also keeps each span, and when those are done rank 0 writes the spans of all ranks to
// one Chrome trace, on one clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/span_log.h"
#include "comm/fabric.h"
#include "train/metrics.h"

namespace distca {

struct TraceOptions {
  std::string path;               // empty: no trace
  std::string device_path;        // of what rank 0's device does (attend/device_trace.h); empty: none
  int64_t first = -1, last = -1;  // steps first … last − 1; −1: the first two that are run
};

/// "3:5" is steps 3 and 4; "3" is step 3. Throws InputError.
void parse_trace_steps(const std::string& text, TraceOptions& options);

/// The kinds of work in the table, in its order.
inline constexpr WorkKind kBreakdownKinds[] = {WorkKind::kCi,    WorkKind::kAttention, WorkKind::kPack,
                                               WorkKind::kMerge, WorkKind::kOptimizer, WorkKind::kWait,
                                               WorkKind::kBubble};

/// One rank's seconds in the steps of a run, on its clock.
struct RankBreakdown {
  WorkSeconds seconds = {};
  double step_s = 0;  // from the beginning to the end of steps
  int32_t rank = 0;   // in the run

  double of(WorkKind kind) const { return seconds[static_cast<size_t>(kind)]; }
  /// What no kind of work accounts for.
  double other() const;
};

/// Of all ranks, on every rank.
std::vector<RankBreakdown> gather_breakdown(Fabric& world, const RankBreakdown& own);

/// A line a rank (16 at most, then the mean of all), as shares of the steps' time.
std::string breakdown_table(const std::vector<RankBreakdown>& ranks);

/// What the plans of a run came to.
struct PlanningSums {
  double idle_load = 0, idle_share = 0;  // attention of ranks without a micro-batch: planned, and by the rule
  int64_t held_rows = 0;                 // K/V rows of a layer, of the server that held most
  double held_rows_max_over_mean = 1;    // of the worst plan

  void add(const StepMetrics& step);
};

/// Share of all ranks' time that is bubble.
double bubble_of(const std::vector<RankBreakdown>& ranks);

/// "bubble 12.3% of the ranks' time; …", a line.
std::string planning_line(const std::vector<RankBreakdown>& ranks, const PlanningSums& sums);

/// What has to be added to each rank's clock to have that of rank 0: 0 where they are the same clock, else
/// estimated from messages to and fro, to about half their time. Collective.
std::vector<double> clock_offsets(Fabric& world);

/// Puts the events of all ranks together in a file, written by rank 0; `rank` is what this one is called
/// there, and `member` (of rank 0) a further member of the JSON object: its name and value. Collective.
void write_trace(Fabric& world, int32_t rank, const std::vector<WorkSpan>& spans, const std::string& path,
                 const std::string& member);

}  // namespace distca
