#include "plan/draft.h"

#include <algorithm>

#include "plan/finish.h"

namespace distca {
namespace {

/// Share of what the tolerance allows that is left unused.
constexpr double kMargin = 0.04;

/// Causal pairs are kept this even at least, beside the loads that count, where servers are equal.
constexpr double kLeastPairTolerance = 0.01;

Task home_task(const Shard& shard) {
  return {shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home};
}

Task task_of(const Region& region, int32_t doc, int32_t server) {
  return {doc, {region.top, region.bottom}, {region.left, region.bottom}, server};
}

}  // namespace

Draft::Draft(const Layout& layout, const PlanOptions& options, double least_tolerance)
    : layout_(layout),
      options_(options),
      servers_(static_cast<size_t>(layout.ranks + options.dedicated)),
      pairs_per_load_(static_cast<size_t>(layout.ranks), 1),
      tolerance_(std::max(options.tolerance, least_tolerance)) {
  int64_t total = 0, padded_total = 0;
  std::vector<int64_t> largest(pairs_per_load_.size(), 0);
  for (const Shard& shard : layout.shards) {
    const Task task = home_task(shard);
    const auto home = static_cast<size_t>(shard.home);
    const int64_t cost = options.cost(task), padded = padded_pairs(task), raw = pairs(task);
    servers_[home].load += cost;
    servers_[home].raw += raw;
    servers_[home].kv_rows += shard.tokens.end;  // its own and the prefix it fetches
    count_fetch(shard, {0, shard.tokens.begin}, shard.home, 1);
    if (padded > largest[home]) {
      largest[home] = padded;
      pairs_per_load_[home] = static_cast<double>(padded) / static_cast<double>(std::max<int64_t>(1, cost));
    }
    total += cost;
    padded_total += padded;
  }
  for (const DraftServer& server : servers_)
    busiest_at_home_ = std::max({busiest_at_home_, server.send, server.receive});
  even_pairs_ = !options.cost.in_seconds() && options.ci.empty() && options.speeds.empty();
  refresh_capacity();
  const double pairs_per_load =
      static_cast<double>(padded_total) / static_cast<double>(std::max<int64_t>(1, total));
  carver_ =
      Carver(layout, options.bytes, static_cast<int64_t>(static_cast<double>(margin_ / 2) * pairs_per_load));
}

void Draft::refresh_capacity() {
  int64_t total = 0, raw_total = 0;
  for (const DraftServer& server : servers_) {
    total += server.load;
    raw_total += server.raw;
  }
  const auto count = static_cast<int32_t>(servers_.size());
  const FinishTimes times =
      finish_times(total, count, options_.speeds, options_.ci, tolerance_ * (1 - held_back_));
  const FinishTimes raw_times =
      finish_times(raw_total, count, {}, {}, std::max(tolerance_, kLeastPairTolerance));
  for (size_t i = 0; i < servers_.size(); ++i) {
    servers_[i].capacity = times.capacity[i];
    if (even_pairs_) servers_[i].raw_capacity = raw_times.capacity[i];
  }
  best_finish_ = times.best;
  margin_ = static_cast<int64_t>(times.best * tolerance_ * kMargin);
}

void Draft::keep_tolerance() {
  tolerance_ = options_.tolerance;
  refresh_capacity();
}

void Draft::hold_back(double share) {
  held_back_ = share;
  refresh_capacity();
}

void Draft::let_causal_pairs_be() {
  even_pairs_ = false;
  for (DraftServer& server : servers_) server.raw_capacity = INT64_MAX;
}

int64_t Draft::excess(int32_t index, int64_t margin) const {
  const DraftServer& server = servers_[static_cast<size_t>(index)];
  const int64_t by_load = server.load - std::max<int64_t>(0, server.capacity - margin);
  if (server.raw_capacity == INT64_MAX) return by_load;
  return std::max(by_load, server.raw - std::max<int64_t>(0, server.raw_capacity - margin));
}

int64_t Draft::key_room(int32_t index) const {
  if (options_.kv_row_limit == 0) return INT64_MAX;
  return options_.kv_row_limit - servers_[static_cast<size_t>(index)].kv_rows;
}

int64_t Draft::room(int32_t index, int64_t margin) const {
  if (key_room(index) < kTileRows) return 0;
  if (options_.byte_limit > 0 && busy(index) >= options_.byte_limit) return 0;
  return std::max<int64_t>(0, -excess(index, margin));
}

Donor& Draft::donor_of_rank(int32_t rank) {
  int32_t& index = server(rank).donor;
  if (index < 0) {
    index = static_cast<int32_t>(donors_.size());
    donors_.emplace_back().rank = rank;
  }
  return donor(index);
}

int64_t Draft::pairs_of_load(int32_t rank, int64_t load) const {
  if (!options_.cost.in_seconds()) return load;
  return static_cast<int64_t>(static_cast<double>(load) * pairs_per_load_[static_cast<size_t>(rank)]);
}

double Draft::load_per_byte(const Donor& donor, int32_t server) const {
  int64_t load = 0, bytes = 0;
  for (const Cutout& piece : donor.carving.pieces) {
    if (piece.to != server) continue;
    load += cost_of(piece);
    bytes += piece.keys() * options_.bytes.kv();
    if (!piece.strip) bytes += piece.rows() * (options_.bytes.q + options_.bytes.o);
  }
  return static_cast<double>(load) / static_cast<double>(std::max<int64_t>(1, bytes));
}

void Draft::carve(const Donor& donor, Carving& carving) {
  const bool everything = server(donor.rank).capacity == 0;
  if (options_.kv_row_limit == 0) return carver_.carve(donor.rank, donor.flows, everything, carving);
  std::vector<Flow> flows = donor.flows;
  for (Flow& flow : flows) flow.max_keys = key_room(flow.to);
  carver_.carve(donor.rank, flows, everything, carving);
}

void Draft::count(const Donor& donor, int64_t sign) {
  DraftServer& home = server(donor.rank);
  const auto regions = carver_.regions_of(donor.rank);
  for (size_t i = 0; i < donor.carving.touched; ++i) count_region(home, regions[i], -sign);
  for (const Region& region : donor.carving.rest) count_region(home, region, sign);
  for (const Cutout& piece : donor.carving.pieces) {
    DraftServer& to = server(piece.to);
    to.load += sign * cost_of(piece);
    to.raw += sign * pairs(piece);
    count_keys(piece, sign);
    if (piece.strip) continue;
    const int64_t q = sign * piece.rows() * options_.bytes.q;
    const int64_t o = sign * piece.rows() * (options_.bytes.o + (piece.partial() ? options_.bytes.lse : 0));
    home.send += q;
    to.receive += q;
    home.receive += o;
    to.send += o;
  }
  for (const Saving& saving : donor.carving.savings) {
    count_fetch(layout_.shards[static_cast<size_t>(saving.shard)], {0, saving.end}, donor.rank, -sign);
  }
  for (const Flow& flow : donor.flows) {
    std::vector<int32_t>& from = server(flow.to).from;
    if (sign > 0) {
      from.push_back(home.donor);
    } else {
      from.erase(std::find(from.begin(), from.end(), home.donor));
    }
  }
}

void Draft::count_region(DraftServer& server, const Region& region, int64_t sign) const {
  const Task task = task_of(region, 0, 0);
  server.load += sign * options_.cost(task);
  server.raw += sign * pairs(task);
}

/// Keys come from the homes of the document's shards, and are free where the server holds them anyway.
void Draft::count_keys(const Cutout& piece, int64_t sign) {
  const int64_t held = carver_.held_keys().end_at(piece.shard, piece.to);
  count_fetch(layout_.shards[static_cast<size_t>(piece.shard)], {std::max(piece.left, held), piece.right},
              piece.to, sign);
}

/// Keys of the shard's document that `to` gets from their homes.
void Draft::count_fetch(const Shard& of, Span keys, int32_t to, int64_t sign) {
  if (keys.empty()) return;
  const auto end = layout_.shards.end();
  auto shard = layout_.shards.begin() + (&of - layout_.shards.data());
  while (shard->tokens.begin > keys.begin) --shard;
  while (shard->tokens.end <= keys.begin) ++shard;
  for (; shard != end && shard->doc == of.doc && shard->tokens.begin < keys.end; ++shard) {
    if (shard->home == to) continue;
    const int64_t rows = std::min(keys.end, shard->tokens.end) - std::max(keys.begin, shard->tokens.begin);
    const int64_t bytes = sign * rows * options_.bytes.kv();
    server(shard->home).send += bytes;
    server(to).receive += bytes;
    if (to != of.home) server(to).kv_rows += sign * rows;
  }
}

int64_t Draft::cost_of(const Cutout& piece) const {
  if (!options_.cost.in_seconds()) return padded_pairs(piece);
  std::vector<Task> tasks;
  add_tasks(piece, 0, tasks);
  int64_t cost = 0;
  for (const Task& task : tasks) cost += options_.cost(task);
  return cost;
}

std::vector<Task> Draft::tasks() const {
  std::vector<Task> tasks;
  tasks.reserve(layout_.shards.size() + 8 * donors_.size());
  for (int32_t rank = 0; rank < layout_.ranks; ++rank) {
    const int32_t index = servers_[static_cast<size_t>(rank)].donor;
    size_t touched = 0;
    if (index >= 0) {
      const Carving& carving = donors_[static_cast<size_t>(index)].carving;
      touched = carving.touched;
      for (const Cutout& piece : carving.pieces) add_tasks(piece, doc_of(piece.shard), tasks);
      for (const Region& region : carving.rest) tasks.push_back(task_of(region, doc_of(region.shard), rank));
    }
    for (const Region& region : carver_.regions_of(rank).subspan(touched)) {
      tasks.push_back(task_of(region, doc_of(region.shard), rank));
    }
  }
  return tasks;
}

}  // namespace distca
