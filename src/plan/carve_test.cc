#include "plan/carve.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/exchange.h"
#include "plan/policy.h"
#include "plan/traffic.h"

namespace distca {
namespace {

int64_t total(const std::vector<Cutout>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                         [](int64_t sum, const Cutout& piece) { return sum + padded_pairs(piece); });
}

TEST(Carve, ManyShortDocumentsGiveTheirCheapestPartsRatherThanAll) {
  // Whole documents of D tokens cost (Q + O + KV) · D for D² / 2 pairs. With rho = 4, 28% more pairs a byte
  // are in the lowest .49 D rows against the first .87 D keys.
  const RowBytes bytes = row_bytes({});
  const int64_t length = 4096;
  const Layout layout = pack_documents({{std::vector<int64_t>(20, length), {1}}, 20 * length});
  Carving carving;
  const int64_t whole_pairs = length * (length + 1) / 2,
                whole_bytes = length * (bytes.q + bytes.o + bytes.kv());
  const Flow flow{1, 7 * whole_pairs};
  Carver(layout, bytes, 0).carve(0, std::span(&flow, 1), false, carving);
  EXPECT_NEAR(static_cast<double>(total(carving.pieces)), static_cast<double>(flow.pairs), 0.01 * flow.pairs);
  EXPECT_LT(static_cast<double>(carving.bytes), 0.85 * 7 * whole_bytes);
  EXPECT_GT(static_cast<double>(carving.bytes), 7 * whole_bytes / 1.29);
}

/// Two ranks share a document of 8,192 tokens: the second has its last rows, and a third rank has nothing.
Layout shared_document(int64_t first) {
  return {{8192, 128}, 3, 8192, {{0, {0, first}, 0, 0}, {0, {first, 8192}, 1, 0}, {1, {0, 128}, 2, 0}}};
}

TEST(Carve, RowsThatMeetTheirKeysShipWithoutThem) {
  const RowBytes bytes = row_bytes({});
  const Layout layout = shared_document(6144);
  const Carver carver(layout, bytes, 0);
  EXPECT_EQ(carver.held_keys().end_at(1, 0), 6144);
  EXPECT_EQ(carver.held_keys().end_at(0, 1), 8192);  // fetched for its own queries
  EXPECT_EQ(carver.held_keys().end_at(0, 2), 0);
  EXPECT_EQ(carver.held_keys().kin_of(1), std::vector<int32_t>{0});
  Carving carving;
  const Flow flow{0, 512 * 6144};
  carver.carve(1, std::span(&flow, 1), false, carving);
  ASSERT_EQ(carving.pieces.size(), 1);
  EXPECT_EQ(carving.pieces[0].rows(), 512);
  EXPECT_EQ(carving.bytes, 512 * (bytes.q + bytes.o + bytes.lse));
}

TEST(Carve, HomeNeedNotFetchKeysThatNoneOfItsRowsReadThere) {
  const RowBytes bytes = row_bytes({});
  const Layout layout = shared_document(8064);  // 128 rows against 8,064 keys elsewhere
  Carving carving;
  const Flow flow{0, 128 * 8064};
  Carver(layout, bytes, 0).carve(1, std::span(&flow, 1), false, carving);
  EXPECT_EQ(carving.bytes, 128 * (bytes.q + bytes.o + bytes.lse) - 8064 * bytes.kv());
  ASSERT_EQ(carving.savings.size(), 1);
  EXPECT_EQ(carving.savings[0].end, 8064);
}

TEST(Carve, RecipientsThatHoldThePrefixArePreferred) {
  // Ranks 0 and 2 have the same room; rank 1's rows need no keys shipped to rank 0.
  const Layout layout{
      {16384, 11585}, 3, 16384, {{0, {0, 11585}, 0, 0}, {0, {11585, 16384}, 1, 0}, {1, {0, 11585}, 2, 0}}};
  PlanOptions options;
  for (const int64_t moves : {int64_t{0}, options.search_moves}) {
    options.search_moves = moves;
    options.speeds = {1, 0.5, 1};
    const Plan plan = make_plan(layout, options).plan;
    int64_t to_kin = 0, to_stranger = 0;
    for (const Task& task : plan.tasks) {
      if (task.doc != 0 || task.q.begin < 11585) continue;
      if (task.server == 0) to_kin += pairs(task);
      if (task.server == 2) to_stranger += pairs(task);
    }
    EXPECT_GT(to_kin, to_stranger);
  }
}

}  // namespace
}  // namespace distca
