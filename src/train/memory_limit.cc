#include "train/memory_limit.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/log.h"

namespace distca {
namespace {

constexpr int64_t kTooMuch = std::numeric_limits<int64_t>::max();
constexpr int kTries = 6;  // halvings of the range of row limits: to within 2% of it

std::string three_places(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

/// What all ranks need.
struct Need {
  std::vector<int64_t> peaks;  // by rank
  int64_t most = 0;            // of them; kTooMuch where plans can't keep the limit of rows
  PeakMemory worst;            // the largest of each
};

Need need_of(Fabric& world, const RunInputs& inputs, const BatchStream& stream) {
  const PeakMemory own = dry_run(inputs, stream, {world.rank(), world.world_size(), kPredictedSteps});
  Need need;
  need.peaks = gather_numbers(world, own.peak, "predicted peaks");
  const auto most_of = [&](int64_t value, const char* name) {
    const std::vector<int64_t> all = gather_numbers(world, value, name);
    return *std::max_element(all.begin(), all.end());
  };
  need.worst.state = most_of(own.state, "sizes of the state");
  need.worst.kv_rows = most_of(own.kv_rows, "rows served");
  need.worst.beyond_row_limit = most_of(own.beyond_row_limit, "plans beyond the limit of rows");
  need.worst.worst_finish = own.worst_finish;
  world.all_reduce(std::span<double>(&need.worst.worst_finish, 1), ReduceOp::kMax, "balance of plans");
  need.most =
      need.worst.beyond_row_limit > 0 ? kTooMuch : *std::max_element(need.peaks.begin(), need.peaks.end());
  return need;
}

/// " attention.memory = "resend" would need 12 MiB;" for each key that would help.
std::string alternatives(Fabric& world, const RunInputs& inputs, const BatchStream& stream) {
  std::string text;
  const auto add = [&](const std::string& what, const auto& change) {
    RunInputs other = inputs;
    change(other.config);
    text += format("; with {} it would be {}", what, bytes_text(need_of(world, other, stream).most));
  };
  const auto resend = [](Config& config) { config.attention.memory = "resend"; };
  const auto recompute = [](Config& config) { config.parallel.recompute = "selective"; };
  const bool keeps = inputs.config.keeps_on_server(), all = inputs.config.parallel.recompute == "none";
  if (keeps) add("attention.memory = \"resend\"", resend);
  if (all) add("parallel.recompute = \"selective\"", recompute);
  if (keeps && all) add("both", [&](Config& config) { resend(config), recompute(config); });
  if (!inputs.config.parallel.shard_optimizer)
    add("parallel.shard_optimizer", [](Config& config) { config.parallel.shard_optimizer = true; });
  return text;
}

/// The most rows with which every rank keeps the limit, or 0.
int64_t rows_that_fit(Fabric& world, RunInputs inputs, const BatchStream& stream, int64_t most_rows,
                      Need& fitting) {
  const int64_t limit = inputs.config.parallel.memory_limit;
  int64_t fits = 0, low = most_rows / 4, high = most_rows - 1;
  for (int attempt = 0; attempt < kTries && low <= high; ++attempt) {
    const int64_t rows = inputs.kv_row_limit = low + (high - low) / 2;
    Need need = need_of(world, inputs, stream);
    if (need.most <= limit) {
      fits = rows;
      fitting = std::move(need);
      low = rows + 1;
    } else if (need.most == kTooMuch) {
      low = rows + 1;
    } else {
      high = rows - 1;
    }
  }
  return fits;
}

}  // namespace

MemoryPlan plan_memory(Fabric& world, RunInputs& inputs, const BatchStream& stream) {
  if (stream.state().step >= inputs.config.train.steps) return {};
  const int64_t limit = inputs.config.parallel.memory_limit;
  MemoryPlan plan;
  Need need = need_of(world, inputs, stream);
  if (limit > 0 && need.most > limit) {
    const bool plans = inputs.config.attention.policy == "cad";
    Need fitting;
    const int64_t rows = plans ? rows_that_fit(world, inputs, stream, need.worst.kv_rows, fitting) : 0;
    DISTCA_CHECK_INPUT(
        rows > 0,
        "parallel.memory_limit = {} ({}) can't be kept: predicted are {}, of which parameters, "
        "gradients and optimizer take up to {}{}",
        limit, bytes_text(limit), extremes_text(need.peaks), bytes_text(need.worst.state),
        alternatives(world, inputs, stream));
    inputs.kv_row_limit = rows;
    plan.report.push_back(format(
        "memory: parallel.memory_limit keeps every server to {} K/V rows of a layer (without it {}): the "
        "worst plan finishes at {} of the best common time (without it {})",
        rows, need.worst.kv_rows, three_places(fitting.worst.worst_finish),
        three_places(need.worst.worst_finish)));
    need = std::move(fitting);
  }
  plan.report.push_back(
      format("memory: predicted peak of tensors {}; parameters, gradients and optimizer take up to {}",
             extremes_text(need.peaks), bytes_text(need.worst.state)));
  plan.peaks = std::move(need.peaks);
  return plan;
}

void compare_memory(const Config& config, const MemoryReport& memory) {
  if (memory.predicted.empty()) return;
  for (const SharedDevice& device : memory.shared) {
    const int64_t predicted = memory.predicted_for(device);
    log_info(
        "memory: measured peak of tensors on a device that {} ranks share, ranks {} to {}: {}; predicted for "
        "them together {}, {} of it",
        device.ranks.size(), device.ranks.front(), device.ranks.back(), bytes_text(device.measured),
        bytes_text(predicted),
        three_places(static_cast<double>(predicted) / static_cast<double>(device.measured)));
  }
  if (memory.measured.empty()) return;
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (size_t rank = 0; rank < memory.measured.size(); ++rank) {
    const double ratio =
        static_cast<double>(memory.predicted[rank]) / static_cast<double>(memory.measured[rank]);
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  log_info("memory: measured peak of tensors {}; predicted were {} to {} of what a rank needed",
           extremes_text(memory.measured), three_places(least), three_places(most));
  const int64_t limit = config.parallel.memory_limit;
  const int64_t peak = *std::max_element(memory.measured.begin(), memory.measured.end());
  if (limit > 0 && peak > limit) {
    log_warning("parallel.memory_limit = {} was not kept: a rank needed {}, {} of it", limit,
                bytes_text(peak), three_places(static_cast<double>(peak) / static_cast<double>(limit)));
  }
}

}  // namespace distca
