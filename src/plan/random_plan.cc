#include "plan/random_plan.h"

namespace distca {
namespace {

std::vector<int64_t> random_lengths(Random& random, int64_t max_length) {
  std::vector<int64_t> lengths;
  for (int64_t count = random.between(1, 6); count > 0; --count) {
    const int64_t kind = random.between(0, 5);
    lengths.push_back(kind == 0   ? random.between(0, 1)
                      : kind == 1 ? kTileRows * random.between(0, max_length / kTileRows)
                                  : random.between(0, max_length));
  }
  return lengths;
}

/// Positions where tasks of a document may be cut: the grid, edges of its shards, its ends.
std::vector<int64_t> grid_of(const Layout& layout, int32_t doc) {
  std::vector<int64_t> grid;
  for (int64_t at = 0; at < layout.doc_lengths[static_cast<size_t>(doc)]; at += kTileRows) grid.push_back(at);
  grid.push_back(layout.doc_lengths[static_cast<size_t>(doc)]);
  for (const Shard& shard : layout.shards) {
    if (shard.doc == doc) grid.push_back(shard.tokens.begin);
  }
  std::sort(grid.begin(), grid.end());
  grid.erase(std::unique(grid.begin(), grid.end()), grid.end());
  return grid;
}

/// Cuts `queries` of one home against keys [0, queries.end): one diagonal task, full ones left of it.
void cut_rows(Random& random, Plan& plan, int32_t doc, Span queries, const std::vector<int64_t>& grid) {
  const auto server = [&] { return static_cast<int32_t>(random.between(0, plan.servers - 1)); };
  std::vector<int64_t> edges{0};
  for (const int64_t edge : grid) {
    if (edge > 0 && edge <= queries.begin && random.between(0, 3) == 0) edges.push_back(edge);
  }
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    plan.tasks.push_back({doc, queries, {edges[i], edges[i + 1]}, server()});
  }
  plan.tasks.push_back({doc, queries, {edges.back(), queries.end}, server()});
}

}  // namespace

Layout random_layout(Random& random, int32_t max_ranks, int64_t max_length) {
  const auto ranks = static_cast<int32_t>(random.between(1, max_ranks));
  std::vector<int64_t> lengths = random_lengths(random, max_length);
  const Layout tight = pack_in_order(lengths, ranks);
  return random.between(0, 1) == 0 ? tight
                                   : pack_in_order(lengths, ranks, tight.rows + random.between(1, 200));
}

Layout random_full_layout(Random& random, int32_t max_ranks, int64_t max_length) {
  const auto ranks = static_cast<int32_t>(random.between(1, max_ranks));
  std::vector<int64_t> lengths = random_lengths(random, max_length);
  const Layout tight = pack_in_order(lengths, ranks);
  lengths.push_back(tight.rows * ranks - tight.tokens());
  return pack_in_order(lengths, ranks);
}

Plan random_plan(Random& random, const Layout& layout, int32_t max_dedicated) {
  Plan plan{layout, layout.ranks + static_cast<int32_t>(random.between(0, max_dedicated)), {}};
  for (const Shard& shard : layout.shards) {
    const std::vector<int64_t> grid = grid_of(layout, shard.doc);
    int64_t begin = shard.tokens.begin;
    for (const int64_t edge : grid) {
      const bool cut = edge == shard.tokens.end || random.between(0, 2) == 0;
      if (edge <= begin || edge > shard.tokens.end || !cut) continue;
      cut_rows(random, plan, shard.doc, {begin, edge}, grid);
      begin = edge;
    }
  }
  plan.sort_tasks();
  return plan;
}

}  // namespace distca
