// What a step reports: one JSON line in a file, one line for a person.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace distca {

struct StepMetrics {
  int64_t step = 0;  // from 0
  double loss = 0;   // mean over the targets, before the update
  int64_t tokens = 0, targets = 0, padding = 0;
  int64_t documents = 0, long_documents = 0;  // long: of more tokens than a rank's chunk has rows
  double step_s = 0, tokens_per_s = 0;
  double compute_s = 0;  // CPU time in layers, kernel, loss and optimizer, mean of the ranks
  double lr = 0;
  double grad_norm = 0;                // before clipping
  double load_max_over_mean = 0;       // attention of the worst nano-batch over ranks, in padded pairs
  double load_max_over_mean_none = 0;  // what it would be without disaggregation
  int64_t bytes = 0;                   // that all ranks sent for attention
  double wait_s = 0;                   // exposed waits for attention's exchanges, of the worst rank
  double pack_s = 0;                   // the same in gathering, ordering and merging rows of exchanges
  double reduce_s = 0;                 // the worst rank's time in sums over ranks, waits included
  double plan_ms = 0;                  // of this rank, in the background
  uint64_t digest = 0;                 // of all plans of the step
  int64_t redone = 0;                  // how often the step was begun again because a server was lost
  int64_t servers = 0;                 // dedicated servers that took part, of all tensor-parallel indices
  bool timing_only = false;            // rows weren't sent: loss and gradient mean nothing

  // Attention of idle stages and dedicated servers: planned, and what the finish-time rule gives them.
  double idle_load = 0, idle_share = 0;
  // K/V rows of a layer, of the server that holds most, and that over the mean of the worst plan.
  int64_t held_rows = 0;
  double held_rows_max_over_mean = 1;
  std::vector<double> speeds;  // of attention servers, as the step was planned; empty: all 1
};

/// The JSON line, without its end.
std::string metrics_line(const StepMetrics& metrics);

/// A file of such lines. Every line is on its way to the disk when write() returns.
class MetricsFile {
 public:
  /// Keeps the whole lines of an existing file whose step is below `first_step`: the run will do the others
  /// again. Throws Error that names the file when it can't be written.
  MetricsFile(std::string path, int64_t first_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void write(const StepMetrics& metrics);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

/// Progress on standard error: one line that is overwritten on a terminal, else a line a step.
class ProgressLine {
 public:
  explicit ProgressLine(int64_t steps);
  ~ProgressLine();

  void show(const StepMetrics& metrics);
  /// Ends an overwritten line, so that others can print.
  void finish();

  /// "step 3/100 · loss 4.1234 · 52,345 tokens/s · load 1.03 · 2m05s left"
  std::string line(const StepMetrics& metrics);

 private:
  int64_t steps_;
  bool terminal_, open_ = false;
  double mean_step_s_ = 0;
};

/// "41,230,000".
std::string with_commas(int64_t number);

/// "7s", "2m05s", "3h07m".
std::string duration(double seconds);

}  // namespace distca
