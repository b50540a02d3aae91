// A plan in the making: who gives which pairs to whom, cut out of the donors' documents, and what that
// does to every server's load and traffic. The scheduler and its search change it donor by donor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/carve.h"
#include "plan/cost.h"
#include "plan/policy.h"

namespace distca {

struct DraftServer {
  int64_t load = 0, raw = 0;  // of what it computes now: cost, and causal pairs
  int64_t capacity = 0;       // load that keeps the tolerance
  int64_t raw_capacity = INT64_MAX;
  int64_t send = 0, receive = 0;  // bytes
  int64_t kv_rows = 0;            // held
  int32_t donor = -1;             // index into donors, if it is one
  std::vector<int32_t> from;      // donors that give to it
};

struct Donor {
  int32_t rank = 0;
  std::vector<Flow> flows;
  Carving carving;
};

class Draft {
 public:
  /// Flows are cut for the options' tolerance, or for `least_tolerance` if that is more, until
  /// keep_tolerance().
  Draft(const Layout& layout, const PlanOptions& options, double least_tolerance);

  const Layout& layout() const { return layout_; }
  const PlanOptions& options() const { return options_; }
  const Carver& carver() const { return carver_; }
  std::vector<DraftServer>& servers() { return servers_; }
  std::vector<Donor>& donors() { return donors_; }
  DraftServer& server(int32_t index) { return servers_[static_cast<size_t>(index)]; }
  const DraftServer& server(int32_t index) const { return servers_[static_cast<size_t>(index)]; }
  Donor& donor(int32_t index) { return donors_[static_cast<size_t>(index)]; }

  /// Load that is left unused, so that the grid's rounding needs no repair.
  int64_t margin() const { return margin_; }
  /// Best common finish time, in the unit of loads.
  double best_finish() const { return best_finish_; }

  /// Bytes of the server that sends or receives most when every query is computed at home.
  int64_t busiest_at_home() const { return busiest_at_home_; }

  /// Sets capacities from the total load there is now: cutting tiles apart adds to it.
  void refresh_capacity();

  /// From now on the tolerance is kept as given. Until then one that is finer than the grid is taken for one
  /// in the thousands, with which flows can be cut.
  void keep_tolerance();

  /// Leaves this share of what the tolerance allows to loads unused, but not of what it allows to causal
  /// pairs.
  void hold_back(double share);

  /// From now on loads alone are to be even, not causal pairs beside them: padding may leave no way to both.
  void let_causal_pairs_be();

  /// How far a server is above its capacity less `margin`; negative: the room it has.
  int64_t excess(int32_t server, int64_t margin) const;

  /// Bytes that a server sends or receives, whichever is more.
  int64_t busy(int32_t index) const { return std::max(server(index).send, server(index).receive); }

  /// Load that a server may still take, 0 if it may hold no more keys or ship no more bytes.
  int64_t room(int32_t server, int64_t margin) const;
  int64_t key_room(int32_t server) const;

  /// The donor of that rank, added if there is none.
  Donor& donor_of_rank(int32_t rank);

  /// Padded pairs of the rank's documents that make up `load`.
  int64_t pairs_of_load(int32_t rank, int64_t load) const;

  /// Load that a donor moves to `server` for each byte that this ships.
  double load_per_byte(const Donor& donor, int32_t server) const;

  /// Cuts a donor's flows into `carving`. Changes nothing else.
  void carve(const Donor& donor, Carving& carving);

  /// Adds what a donor's flows and carving do to the servers, or takes it away.
  void apply(const Donor& donor) { count(donor, 1); }
  void withdraw(const Donor& donor) { count(donor, -1); }

  /// Tasks of the draft, in no order.
  std::vector<Task> tasks() const;

 private:
  void count(const Donor& donor, int64_t sign);
  void count_region(DraftServer& server, const Region& region, int64_t sign) const;
  void count_keys(const Cutout& piece, int64_t sign);
  void count_fetch(const Shard& of, Span keys, int32_t to, int64_t sign);
  int64_t cost_of(const Cutout& piece) const;
  int32_t doc_of(int32_t shard) const { return layout_.shards[static_cast<size_t>(shard)].doc; }

  const Layout& layout_;
  const PlanOptions& options_;
  std::vector<DraftServer> servers_;
  std::vector<Donor> donors_;
  std::vector<double> pairs_per_load_;  // of each rank's documents
  bool even_pairs_ = false;
  double tolerance_ = 0, held_back_ = 0;
  double best_finish_ = 0;
  int64_t margin_ = 0, busiest_at_home_ = 0;
  Carver carver_;
};

}  // namespace distca
