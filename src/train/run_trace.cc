#include "train/run_trace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "base/check.h"
#include "base/chrome_trace.h"
#include "base/file.h"

namespace distca {
namespace {

int64_t step_number(const std::string& text, const std::string& whole) {
  const bool digits =
      !text.empty() && text.size() < 16 && text.find_first_not_of("0123456789") == std::string::npos;
  DISTCA_CHECK_INPUT(digits, "--trace-steps {}: it takes A:B (steps A to B − 1) or one step's number", whole);
  return std::stoll(text);
}

/// Different on machines that don't share a clock.
uint64_t machine_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string text;
  in >> text;
  char host[256] = {};
  if (text.empty()) gethostname(host, sizeof host - 1);
  return std::hash<std::string>{}(text + host);
}

template <typename T>
std::vector<T> gather(Fabric& world, const T& own, const std::string& name) {
  std::vector<T> all(static_cast<size_t>(world.world_size()));
  world.all_gather(&own, all.data(), sizeof own, name);
  return all;
}

/// Seconds that `peer`'s clock is behind that of rank 0. Both call it.
double measure_offset(Fabric& world, int32_t peer) {
  constexpr int kRounds = 8;
  const std::string name = "times of the trace";
  double best = 0, shortest = 1e300;
  for (int round = 0; round < kRounds; ++round) {
    double theirs = 0;
    if (world.rank() == peer) {
      world.receive(&theirs, sizeof theirs, 0, name);
      theirs = world.now();
      world.send(&theirs, sizeof theirs, 0, name);
    } else if (world.rank() == 0) {
      const double asked = world.now();
      world.send(&asked, sizeof asked, peer, name);
      world.receive(&theirs, sizeof theirs, peer, name);
      const double answered = world.now();
      if (answered - asked < shortest) {
        shortest = answered - asked;
        best = (asked + answered) / 2 - theirs;
      }
    }
  }
  return best;
}

std::string line_of(const std::string& name, const RankBreakdown& rank) {
  std::string out;
  char text[64];
  std::snprintf(text, sizeof text, "%-6s", name.c_str());
  out += text;
  const auto share = [&](double seconds) {
    std::snprintf(text, sizeof text, " %9.1f%%", rank.step_s > 0 ? 100 * seconds / rank.step_s : 0);
    out += text;
  };
  for (const WorkKind kind : kBreakdownKinds) share(rank.of(kind));
  share(rank.other());
  std::snprintf(text, sizeof text, " %10.3f s\n", rank.step_s);
  return out + text;
}

}  // namespace

void parse_trace_steps(const std::string& text, TraceOptions& options) {
  const size_t colon = text.find(':');
  options.first = step_number(text.substr(0, colon), text);
  options.last = colon == std::string::npos ? options.first + 1 : step_number(text.substr(colon + 1), text);
  DISTCA_CHECK_INPUT(options.first < options.last, "--trace-steps {}: these are no steps", text);
}

double RankBreakdown::other() const {
  double known = 0;
  for (const WorkKind kind : kBreakdownKinds) known += of(kind);
  return std::max(0.0, step_s - known);
}

std::vector<RankBreakdown> gather_breakdown(Fabric& world, const RankBreakdown& own) {
  return gather(world, own, "seconds of the run");
}

std::string breakdown_table(const std::vector<RankBreakdown>& ranks) {
  constexpr size_t kMost = 16;
  std::string out =
      "rank          CI  attention       pack      merge  optimizer       wait     bubble      other   of\n";
  RankBreakdown mean;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank < kMost) out += line_of(std::to_string(ranks[rank].rank), ranks[rank]);
    for (size_t kind = 0; kind < kWorkKinds; ++kind) mean.seconds[kind] += ranks[rank].seconds[kind];
    mean.step_s += ranks[rank].step_s;
  }
  if (ranks.size() > 1) {
    for (double& seconds : mean.seconds) seconds /= static_cast<double>(ranks.size());
    mean.step_s /= static_cast<double>(ranks.size());
    out += line_of("mean", mean);
  }
  return out;
}

double bubble_of(const std::vector<RankBreakdown>& ranks) {
  double bubble = 0, all = 0;
  for (const RankBreakdown& rank : ranks) {
    bubble += rank.of(WorkKind::kBubble);
    all += rank.step_s;
  }
  return all > 0 ? bubble / all : 0;
}

void PlanningSums::add(const StepMetrics& step) {
  idle_load += step.idle_load;
  idle_share += step.idle_share;
  held_rows = std::max(held_rows, step.held_rows);
  held_rows_max_over_mean = std::max(held_rows_max_over_mean, step.held_rows_max_over_mean);
}

std::string planning_line(const std::vector<RankBreakdown>& ranks, const PlanningSums& sums) {
  char text[128];
  std::snprintf(text, sizeof text, "bubble %.1f%% of the ranks' time; ", 100 * bubble_of(ranks));
  std::string out = text;
  if (sums.idle_share > 0) {
    std::snprintf(text, sizeof text,
                  "idle ranks did %.1f%% of the attention that the finish-time rule gives them; ",
                  100 * sums.idle_load / sums.idle_share);
    out += text;
  }
  std::snprintf(text, sizeof text,
                "a server held up to %lld K/V rows of a layer, up to %.2f of a plan's mean\n",
                static_cast<long long>(sums.held_rows), sums.held_rows_max_over_mean);
  return out + text;
}

std::vector<double> clock_offsets(Fabric& world) {
  std::vector<double> offsets(static_cast<size_t>(world.world_size()), 0.0);
  if (world.kind() == "threads") return offsets;
  const std::vector<uint64_t> machines = gather(world, machine_id(), "machines of the ranks");
  for (int32_t peer = 1; peer < world.world_size(); ++peer) {
    if (machines[static_cast<size_t>(peer)] != machines[0])
      offsets[static_cast<size_t>(peer)] = measure_offset(world, peer);
  }
  world.broadcast(offsets.data(), world.world_size() * static_cast<int64_t>(sizeof(double)), 0,
                  "offsets of the clocks");
  return offsets;
}

void write_trace(Fabric& world, int32_t rank, const std::vector<WorkSpan>& spans, const std::string& path,
                 const std::string& member) {
  const std::string name = "spans of the trace";
  const double offset = clock_offsets(world)[static_cast<size_t>(world.rank())];
  double begin = 1e300;
  for (const WorkSpan& span : spans) begin = std::min(begin, span.begin + offset);
  const std::vector<double> begins = gather(world, begin, name);
  const double zero = *std::min_element(begins.begin(), begins.end());
  const std::string own = trace_events(rank, spans, zero - offset);
  const std::vector<int64_t> sizes = gather(world, static_cast<int64_t>(own.size()), name);
  if (world.rank() > 0) return world.send(own.data(), static_cast<int64_t>(own.size()), 0, name);
  std::vector<std::string> events = {own};
  for (int32_t peer = 1; peer < world.world_size(); ++peer) {
    events.emplace_back(static_cast<size_t>(sizes[static_cast<size_t>(peer)]), '\0');
    world.receive(events.back().data(), sizes[static_cast<size_t>(peer)], peer, name);
  }
  std::string text = ChromeTrace::whole(events);
  if (!member.empty()) text.replace(text.rfind('}'), std::string::npos, ", " + member + "}\n");
  write_file_atomically(path, text);
}

}  // namespace distca
