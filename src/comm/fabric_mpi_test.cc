// The tests of every fabric over MPI ranks, and what only MPI ranks do. Each test runs on all ranks at once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "comm/fabric_suite.h"
#include "comm/mpi.h"

namespace distca {
namespace {

Fabric* world = nullptr;

/// A seed that all ranks share.
uint64_t shared_seed() {
  uint64_t seed = std::random_device()();
  world->broadcast(&seed, sizeof seed, 0, "seed");
  return seed;
}

TEST(MpiFabric, DoesWhatEveryFabricMust) {
  const uint64_t seed = shared_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  EXPECT_EQ(world->kind(), "mpi");
  suite::check_all(*world, seed);
}

TEST(MpiFabric, ReducesMoreThanItMovesAtATime) {
  const uint64_t seed = shared_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const int64_t count = 2'500'003;
  std::vector<float> data = suite::values<float>(seed, world->rank(), count);
  world->all_reduce(std::span<float>(data), ReduceOp::kSum, "long");
  EXPECT_TRUE(
      suite::same_bits(data, suite::reduced<float>(seed, world->world_size(), count, ReduceOp::kSum)));
}

TEST(MpiFabric, MessagesAndOffsetsBeyond2To31Bytes) {
  suite::check_large_exchange(*world);
}

TEST(MpiFabric, ManyExchangesFromManyRanks) {
  const uint64_t seed = shared_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  suite::check_exchanges(*world, seed, 100);
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  const char* rank = std::getenv("PMIX_RANK");
  if (rank && std::strcmp(rank, "0") != 0)
    GTEST_FLAG_SET(brief, true);  // one rank's progress is enough to read
  testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  const int code = distca::run_mpi_rank({.timeout_s = 60}, [&](distca::Fabric& fabric) {
    distca::world = &fabric;
    failed = RUN_ALL_TESTS();
  });
  return code == 0 ? failed : code;
}
