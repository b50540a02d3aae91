// How fast attention servers are, relative to each other: given, or measured by what each takes for the load
// that plans give it. Speeds are data of a run: all ranks have the same, plans go by them, checkpoints keep
// them.
//
// The plans of a step are made while the step before it runs, so what is measured in step n counts from step
// n + 2 on. Measured speeds are smoothed over steps, looked at every few of them, rounded, and left alone
// until one is off by more than a tenth, so that equal ranks stay equal and plans stay the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/config.h"
#include "train/rank_grid.h"

namespace distca {

/// Throws InputError unless there is one speed a rank, or one an attention server.
void check_speeds(const SpeedSetting& setting, const RankGrid& grid);

class ServerSpeeds {
 public:
  /// The setting must have been checked. A server is as fast as the slowest rank of its tensor-parallel
  /// group.
  ServerSpeeds(const SpeedSetting& setting, const RankGrid& grid);

  bool measured() const { return measured_; }
  size_t servers() const { return loads_.size(); }

  /// Of all attention ranks that the run began with, in the plans of the next step and of the one after it.
  /// Empty: all 1.
  const std::vector<double>& next() const { return next_; }
  const std::vector<double>& after_next() const { return after_next_; }

  /// A step is done, in which server i computed a load of loads[i] in seconds[i]. The same on all ranks. Does
  /// nothing but count the step where speeds aren't measured.
  void add_step(std::span<const double> loads, std::span<const double> seconds);

  /// State as JSON, and back; a run goes on as if it had not stopped. A state of another number of servers,
  /// or of a run that didn't measure, leaves all as it is. Throws InputError that names `origin` when it is
  /// damaged.
  std::string dump() const;
  void restore(std::string_view state, const std::string& origin);

 private:
  std::vector<double> newly_measured() const;

  bool measured_;
  int64_t steps_ = 0;  // measured
  std::vector<double> next_, after_next_;
  std::vector<double> loads_, seconds_;  // sums, older steps counting less
};

/// Those of the servers [begin, end), or of those listed; none where all are 1.
std::vector<double> speeds_of(const std::vector<double>& all, int32_t begin, int32_t end);
std::vector<double> speeds_of(const std::vector<double>& all, const std::vector<int32_t>& servers);

}  // namespace distca
