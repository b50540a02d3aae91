#include "attend/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/threads.h"

#if DISTCA_CUDA
#include <nccl.h>
#endif

namespace distca {
namespace {

std::string why_not(const std::string& name) {
  try {
    device_of(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Device, IsFoundByItsName) {
  EXPECT_TRUE(device_of("cpu").is_cpu());
  EXPECT_EQ(describe_device(at::kCPU), "");
  EXPECT_EQ(why_not("tpu"), "device 'tpu' is none of cpu, cuda");
}

TEST(Device, WhereThereIsNoneTheReasonIsOneLine) {
  const std::string reason = why_not("cuda");
  if (reason.empty()) GTEST_SKIP() << "there is a CUDA device here";
  EXPECT_EQ(reason.find('\n'), std::string::npos);
#if DISTCA_CUDA
  EXPECT_THAT(reason, testing::StartsWith("there is no CUDA device here: "));
#else
  EXPECT_EQ(reason, "there is no CUDA device for this program: PyTorch " TORCH_VERSION
                    " is a CPU build (make gpu-build)");
#endif
}

TEST(Device, TheCpuIsTimedByTheThread) {
  const double seconds = device_seconds(at::kCPU, [] {
    for (const double begin = thread_cpu_seconds(); thread_cpu_seconds() < begin + .01;) {
    }
  });
  EXPECT_GE(seconds, .01);
  EXPECT_LT(seconds, .1);
}

TEST(Device, SeveralRanksExchangeItsMemoryOnlyWhereTheirFabricCan) {
  run_thread_ranks(1, {}, [](Fabric& fabric) { check_exchanges(fabric, {at::kCUDA, 0}); });
  run_thread_ranks(2, {}, [](Fabric& fabric) {
    check_exchanges(fabric, at::kCPU);
    EXPECT_THROW(check_exchanges(fabric, {at::kCUDA, 0}), InputError);
  });
}

#if DISTCA_CUDA
TEST(Nccl, OfTheHeadersIsTheOneThatIsLinked) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, NCCL_VERSION_CODE);
  EXPECT_THAT(ncclGetErrorString(ncclInvalidUsage), testing::StartsWith("invalid usage"));
}
#endif

}  // namespace
}  // namespace distca
