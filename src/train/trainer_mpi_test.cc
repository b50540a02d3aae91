// The exactness runs of trainer_test.cc over MPI ranks: bit for bit what as many thread ranks compute, which
// trainer_test.cc holds against the dense model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "comm/mpi.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

Fabric* world = nullptr;

void expect_bits_of_threads(const RunInputs& inputs) {
  const testing::RunResult here = testing::run_rank(*world, inputs);
  if (world->rank() == 0) {
    const testing::RunResult threads = testing::run_on_threads(world->world_size(), inputs);
    EXPECT_EQ(here.losses, threads.losses);
    EXPECT_EQ(testing::distance(here, threads).gradient, 0);
  }
  world->barrier("end of the test");
}

void expect_bits_of_threads(const std::string& dtype, const std::string& memory) {
  RunInputs inputs = testing::small_run(dtype);
  inputs.config.attention.memory = memory;
  expect_bits_of_threads(inputs);
}

TEST(MpiTrainer, GivesTheBitsOfThreadRanksInFloat64) {
  expect_bits_of_threads("float64", "keep");
}

TEST(MpiTrainer, GivesTheBitsOfThreadRanksInFloat32) {
  expect_bits_of_threads("float32", "resend");
}

/// The modes of exactness_test.cc that fit on four ranks.
void expect_bits_of_threads(const testing::ExactMode& mode) {
  expect_bits_of_threads(testing::exact_run(mode, "float64"));
}

TEST(MpiTrainer, DataParallelWithFreeLayout) {
  expect_bits_of_threads({"pingpong", "keep", 1, 1, 0, "free", 1});
}
TEST(MpiTrainer, TensorParallel) {
  expect_bits_of_threads({"pingpong", "resend", 2, 1, 0, "fixed", 1});
}
TEST(MpiTrainer, PipelineKeeps) {
  expect_bits_of_threads({"pingpong", "keep", 1, 2, 0, "fixed", 3});
}
TEST(MpiTrainer, TensorParallelPipeline) {
  expect_bits_of_threads({"single", "resend", 2, 2, 0, "free", 1});
}
TEST(MpiTrainer, DedicatedServer) {
  expect_bits_of_threads({"pingpong", "keep", 1, 1, 1, "fixed", 1});
}
TEST(MpiTrainer, OneForwardOneBackward) {
  expect_bits_of_threads({"pingpong", "keep", 1, 4, 0, "fixed", 3, "none", "1f1b"});
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  const char* rank = std::getenv("PMIX_RANK");
  if (rank && std::strcmp(rank, "0") != 0) GTEST_FLAG_SET(brief, true);
  testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  const int code = distca::run_mpi_rank({.timeout_s = 120}, [&](distca::Fabric& fabric) {
    distca::world = &fabric;
    failed = RUN_ALL_TESTS();
  });
  return code != 0 ? code : failed;
}
