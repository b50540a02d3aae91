#include "train/memory_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attend/recording_device.h"
#include "comm/nccl_threads.h"
#include "train/run.h"
#include "train/testing.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(MemoryReport, HasEachRanksMeasureWhereEachHasItsDeviceOrNone) {
  MemoryReport report;
  set_measured(report, {0, 0, 0}, {5, 6, 7});
  EXPECT_THAT(report.measured, ElementsAre(5, 6, 7));
  set_measured(report, {71, 72, -3}, {8, 9, 10});
  EXPECT_THAT(report.measured, ElementsAre(8, 9, 10));
  EXPECT_THAT(report.shared, IsEmpty());
}

TEST(MemoryReport, HasADevicesMeasureWhereRanksShareOne) {
  MemoryReport report;
  report.predicted = {10, 20, 30, 40};
  set_measured(report, {8, 8, 9, 8}, {100, 101, 50, 99});
  EXPECT_THAT(report.measured, IsEmpty());
  ASSERT_THAT(report.shared, SizeIs(2));
  EXPECT_THAT(report.shared[0].ranks, ElementsAre(0, 1, 3));
  EXPECT_EQ(report.shared[0].measured, 101);
  EXPECT_EQ(report.predicted_for(report.shared[0]), 70);
  EXPECT_THAT(report.shared[1].ranks, ElementsAre(2));
  EXPECT_EQ(report.predicted_for(report.shared[1]), 30);
}

TEST(MemoryReport, OfARunOnDevicesCountsWhatIsThere) {
  RunInputs inputs = testing::small_run("float32");
  inputs.config.train.steps = 2;
  inputs.config.attention.kernel = "plain";
  constexpr int32_t kRanks = 2;
  const auto library = make_nccl_for_threads(testing::device_for_fabrics(testing::recording_device(0)));
  const auto store = std::make_shared<MemoryStore>();
  std::vector<NcclJob> jobs;
  for (int32_t rank = 0; rank < kRanks; ++rank)
    jobs.push_back(
        {testing::device_for_fabrics(testing::recording_device(rank)), library, store, rank, kRanks, {}});
  MemoryReport memory;
  run_nccl_thread_ranks(jobs, [&](Fabric& fabric) {
    RunInputs own = inputs;
    own.device = testing::recording_device(fabric.rank());
    const RunSummary summary = run_training(fabric, own);
    if (fabric.rank() == 0) memory = summary.memory;
  });
  ASSERT_THAT(memory.predicted, SizeIs(kRanks));
  ASSERT_THAT(memory.measured, SizeIs(kRanks));
  // The kernel of plain operations has its scores besides, of which a prediction knows nothing.
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_LT(memory.predicted[rank], 1.2 * static_cast<double>(memory.measured[rank]));
    EXPECT_GT(memory.predicted[rank], 0.25 * static_cast<double>(memory.measured[rank]));
  }
}

}  // namespace
}  // namespace distca
