#include "plan/bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "base/check.h"
#include "plan/random.h"
#include "plan/report.h"

namespace distca {
namespace {

TEST(Bound, OneDonorAndOneReceiverNeedASquareRoot) {
  // 100 pairs more than its 100: the cheapest rectangle has 5 rows of 16 bytes and 20 keys of 4.
  EXPECT_DOUBLE_EQ(root_bound_bytes({200, 0}, {100, 100}, {8, 2, 2, 8, 0}), 160);
}

TEST(Bound, TheLargerOfReceiversAndDonorsCounts) {
  // Two donors of 25 fit into one receiver of 50: the donors' 5 + 5 is more than the receiver's root of 50.
  EXPECT_DOUBLE_EQ(root_bound_bytes({125, 125, 0}, {100, 100, 50}, {1, 1, 0, 0, 0}), 20);
  // One donor of 50 and two receivers of 25.
  EXPECT_DOUBLE_EQ(root_bound_bytes({150, 0, 0}, {100, 25, 25}, {1, 1, 0, 0, 0}), 20);
  EXPECT_DOUBLE_EQ(root_bound_bytes({10, 10}, {10, 10}, {1, 1, 0, 0, 0}), 0);
}

TEST(Bound, RowsThatCountAndDoNotExistAreFree) {
  // 127 rows too few in a tile: 100,000 pairs more need (h + 127) · w of them at least.
  const RowBytes bytes{8, 2, 2, 8, 0};
  double least = INFINITY;
  for (int64_t rows = 0; rows < 400; ++rows)
    least = std::min(least, 16.0 * static_cast<double>(rows) + 4 * 1e5 / static_cast<double>(rows + 127));
  const double bound = root_bound_bytes({200000, 0}, {100000, 100000}, bytes, 127);
  EXPECT_LE(bound, least);
  EXPECT_GT(bound, 0.999 * least);
  EXPECT_DOUBLE_EQ(root_bound_bytes({1127, 0}, {1000, 1000}, bytes, 127), 4);
}

TEST(Bound, TheMaskMakesShortDocumentsDear) {
  // All of ten documents of 1,000 tokens: every row and every key of them.
  const Layout layout = pack_in_order(std::vector<int64_t>(10, 1000), 1);
  const RowBytes bytes{8, 2, 2, 8, 0};
  const double all = 10 * 1000 * 20;
  const double load = 10.0 * padded_pairs({0, {0, 1000}, {0, 1000}, 0});
  EXPECT_LE(mask_bound_bytes(layout, layout.shards, load, bytes), all);
  EXPECT_GT(mask_bound_bytes(layout, layout.shards, load, bytes), 0.85 * all);
  // Half of them: 16 · sqrt(2,500,000) bytes in one rectangle, which no document here holds.
  EXPECT_GT(mask_bound_bytes(layout, layout.shards, load / 2, bytes), 2 * 16 * std::sqrt(load / 2));
}

/// Every way to assign a small layout's blocks of 128 rows and keys to servers, and the least bytes of those
/// within capacities.
class BruteForce {
 public:
  BruteForce(const Layout& layout, int32_t servers, double slack, const RowBytes& bytes)
      : layout_(layout), bytes_(bytes), loads_(static_cast<size_t>(servers), 0) {
    int64_t total = 0;
    for (const Shard& shard : layout.shards) {
      for (const Span& q : segments(shard.doc, shard.tokens)) {
        for (const Span& kv : segments(shard.doc, {0, q.end})) add_block(shard, q, kv, total);
      }
    }
    capacities_.assign(loads_.size(), static_cast<int64_t>(static_cast<double>(total / servers) * slack));
    assign(0);
  }

  const std::vector<int64_t>& capacities() const { return capacities_; }
  double least() const { return least_; }

 private:
  struct Block {
    int32_t doc, home;
    Span q, kv;
    int64_t load;
    int32_t server;
  };

  /// Runs between tiles and edges of shards.
  std::vector<Span> segments(int32_t doc, Span range) const {
    std::set<int64_t> edges{range.begin, range.end};
    for (int64_t at = 0; at < range.end; at += kTileRows) edges.insert(at);
    for (const Shard& shard : layout_.shards) {
      if (shard.doc == doc) edges.insert({shard.tokens.begin, shard.tokens.end});
    }
    std::vector<Span> spans;
    for (auto at = edges.lower_bound(range.begin); *at < range.end; ++at)
      spans.push_back({*at, *std::next(at)});
    return spans;
  }

  void add_block(const Shard& shard, Span q, Span kv, int64_t& total) {
    const Task task{shard.doc, q, kv, 0};
    const bool whole = shard.tokens.size() == layout_.doc_lengths[static_cast<size_t>(shard.doc)];
    blocks_.push_back({shard.doc, shard.home, q, kv, whole ? padded_pairs(task) : pairs(task), 0});
    total += blocks_.back().load;
  }

  int32_t home(int32_t doc, int64_t position) const {
    for (const Shard& shard : layout_.shards) {
      if (shard.doc == doc && shard.tokens.begin <= position && position < shard.tokens.end)
        return shard.home;
    }
    return -1;
  }

  void assign(size_t at) {
    if (at == blocks_.size()) {
      least_ = std::min(least_, shipped());
      return;
    }
    Block& block = blocks_[at];
    for (size_t server = 0; server < loads_.size(); ++server) {
      if (loads_[server] + block.load > capacities_[server]) continue;
      loads_[server] += block.load;
      block.server = static_cast<int32_t>(server);
      assign(at + 1);
      loads_[server] -= block.load;
    }
  }

  double shipped() const {
    std::set<std::tuple<int32_t, int64_t, int32_t>> rows, keys;
    int64_t bytes = 0;
    for (const Block& block : blocks_) {
      if (block.home != block.server && rows.insert({block.doc, block.q.begin, block.server}).second)
        bytes += block.q.size() * (bytes_.q + bytes_.o);
      if (home(block.doc, block.kv.begin) != block.server &&
          keys.insert({block.doc, block.kv.begin, block.server}).second)
        bytes += block.kv.size() * bytes_.kv();
    }
    return static_cast<double>(bytes);
  }

  const Layout& layout_;
  RowBytes bytes_;
  std::vector<int64_t> capacities_, loads_;
  std::vector<Block> blocks_;
  double least_ = INFINITY;
};

TEST(Bound, NoAssignmentOfTilesShipsLess) {
  struct Case {
    std::vector<int64_t> lengths;
    int32_t servers;
    int64_t rows;
  };
  const Case cases[] = {{{640}, 2, 640},
                        {{512}, 3, 512},
                        {{600}, 2, 600},
                        {{513}, 2, 513},
                        {{384, 256}, 3, 640},
                        {{384, 384}, 2, 768},
                        {{300, 300}, 2, 600},
                        {{130, 130, 130, 130}, 2, 520},
                        {{384, 384}, 2, 384},
                        {{640}, 2, 384},
                        {{500}, 2, 300},
                        {{100, 300, 100}, 3, 200},
                        {{256, 256, 256, 60}, 2, 828}};
  const RowBytes models[] = {{8, 2, 2, 8, 0}, {1, 1, 1, 1, 0}, {1, 4, 4, 1, 0}};
  int bounded = 0;
  for (const double slack : {1.0, 1.1, 1.3}) {
    for (const Case& c : cases) {
      const Layout layout = pack_in_order(c.lengths, c.servers, c.rows);
      for (const RowBytes& bytes : models) {
        SCOPED_TRACE(format("{} documents, the first of {}, over {} servers; Q of {}, slack {}",
                            c.lengths.size(), c.lengths[0], c.servers, bytes.q, slack));
        const BruteForce all(layout, c.servers, slack, bytes);
        const LowerBound bound = lower_bound(layout, all.capacities(), bytes);
        EXPECT_LE(bound.root, all.least() + 1e-9);
        EXPECT_LE(bound.mask, all.least() + 1e-9);
        EXPECT_LE(bound.best, all.least() + 1e-9);
        EXPECT_LE(bound.root, bound.mask);
        bounded += std::isfinite(all.least()) && bound.mask > 0.5 * all.least();
      }
    }
  }
  EXPECT_GT(bounded, 30);
}

TEST(Bound, NoPlanWithinItsToleranceEndsBelow) {
  int bounded = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<int64_t> lengths;
    for (int64_t count = random.between(1, 25); count > 0; --count)
      lengths.push_back(random.between(0, 3) == 0 ? random.between(0, 20000) : random.between(0, 1500));
    const auto ranks = static_cast<int32_t>(random.between(2, 9));
    Layout layout = pack_in_order(lengths, ranks);
    if (random.between(0, 1) == 0) {  // whole documents
      layout.rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{1});
      std::vector<int64_t> filled(static_cast<size_t>(ranks), 0);
      layout.shards.clear();
      for (size_t doc = 0; doc < lengths.size(); ++doc) {
        const int64_t home = random.between(0, ranks - 1);
        if (lengths[doc] == 0) continue;
        layout.shards.push_back({static_cast<int32_t>(doc),
                                 {0, lengths[doc]},
                                 static_cast<int32_t>(home),
                                 filled[static_cast<size_t>(home)]});
        filled[static_cast<size_t>(home)] += lengths[doc];
      }
    }
    PlanOptions options;
    options.tolerance = 0.02 * static_cast<double>(random.between(0, 5));
    options.search_moves = 200;
    options.bytes = row_bytes({random.between(0, 1) == 0 ? 32 : 64, 8, 128, 2});
    PlanResult result;
    const PlanReport report = plan_and_report(layout, options, result);
    if (!report.within_tolerance) continue;
    ASSERT_GE(static_cast<double>(report.traffic.total()), *report.best_bound * (1 - 1e-12));
    ASSERT_GE(*report.best_bound, *report.mask_bound);
    ASSERT_GE(*report.mask_bound, *report.lower_bound);
    bounded += *report.mask_bound > 0;
  }
  EXPECT_GT(bounded, 100);
}

}  // namespace
}  // namespace distca
