// Planning policies: who computes which piece of attention. Each takes documents on their ranks and returns a
// plan that every rank derives alike from the same inputs: costs are integers, ties break by index, and
// search is bounded by a number of moves, never by time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "plan/plan.h"
#include "plan/row_bytes.h"

namespace distca {

enum class Policy {
  kNone,  // each rank computes the queries it is home to and fetches the keys it lacks
  kCad,   // core attention disaggregation: tasks move until every server finishes within the tolerance
  kWlb,   // the baselines of plan/baselines.h
  kCp,
  kCpSeq,
};

/// "none", "cad", "wlb", "cp", "cp-seq". Throws InputError for another name.
Policy policy_named(const std::string& name);
std::string name_of(Policy policy);

enum class LayoutKind {
  kFixed,  // documents stay where they are
  kFree,   // documents may change rank before the step (plan/free_layout.h)
};

struct PlanOptions {
  Policy policy = Policy::kCad;
  LayoutKind layout = LayoutKind::kFixed;
  double tolerance = 0.02;  // a server may finish this much after the best common finish time; 0 to 1
  TaskCost cost{};          // of tasks: padded pairs, or picoseconds
  RowBytes bytes = row_bytes({});
  int32_t dedicated = 0;         // servers without a home, numbered after the ranks; 1,000,000 with these
  std::vector<double> speeds{};  // of each server, relative; empty: all 1
  std::vector<double> ci{};      // each server's other work in the unit of loads; empty: none
  int64_t kv_row_limit = 0;      // K/V rows a server may hold, its own included; 0: no limit
  int64_t byte_limit = 0;        // bytes a server may send, and receive; 0: no limit
  double min_gain = 0;           // least load moved per byte sent; 0: any
  int64_t search_moves = 5000;
  bool quick = false;  // cad: one attempt, which may miss the byte limit by a little
  int32_t cp = 1;      // ranks of a context-parallel group: wlb, cp, cp-seq
};

/// A plan, and why it falls short of its tolerance where it does.
struct PlanResult {
  Plan plan;
  // No server finishes after (1 + tolerance) of the best common time. At tolerance 0 that is exact, and
  // seldom: tasks can't be cut finer than tiles, and a server may be above by one tile a task.
  bool within_tolerance = true;
  std::vector<std::string> shortfalls;  // "server 3 finishes at 1.07 of the best common time: …"
  double latest_finish = 0;             // of any server over the best common time, by cad
  int64_t cost_before_search = 0;       // plan/search.h's cost; the search never raises it
  int64_t cost = 0;
};

/// A plan for documents on their ranks. With a free layout, or a policy that packs documents itself, the
/// plan's layout is another than the one given, over the same ranks. The result is valid. Throws InputError
/// for options that contradict each other or the layout, and where a limit can't be kept.
PlanResult make_plan(const Layout& layout, const PlanOptions& options);

}  // namespace distca
