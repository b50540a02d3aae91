#include "comm/cuda/tcp_store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "base/check.h"
#include "base/clock.h"
#include "comm/cpu_device.h"
#include "comm/cuda/cuda_device.h"
#include "comm/cuda/nccl_library.h"
#include "comm/fabric_suite.h"
#include "comm/nccl_threads.h"

namespace distca {
namespace {

/// One that nobody listens at, at the moment.
int32_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(socket);
  return ntohs(address.sin_port);
}

LaunchedRank rank_at(int32_t rank, int32_t ranks, int32_t port) {
  LaunchedRank out;
  out.rank = rank;
  out.world_size = ranks;
  out.host = "127.0.0.1";
  out.port = port;
  return out;
}

TEST(TcpStore, HoldsTextsAndCountersForAllRanks) {
  const int32_t port = free_port();
  const auto first = make_tcp_store(rank_at(0, 2, port), 20);
  const auto second = make_tcp_store(rank_at(1, 2, port), 20);
  const std::string binary("a\0b\n", 4);
  EXPECT_FALSE(second->get("id", 0).has_value());
  const double begun = wall_seconds();
  EXPECT_FALSE(second->get("id", .1).has_value());
  EXPECT_GE(wall_seconds() - begun, .1);
  first->set("id", binary);
  EXPECT_EQ(second->get("id", 5).value_or("nothing"), binary);
  EXPECT_EQ(first->add("n", 2), 2);
  EXPECT_EQ(second->add("n", 3), 5);
  EXPECT_EQ(first->add("n", 0), 5);
  LaunchedRank again = rank_at(1, 2, port);
  again.attempt = 1;
  EXPECT_FALSE(make_tcp_store(again, 20)->get("id", 0).has_value());
}

TEST(TcpStore, APlaceThatCannotBeReachedIsNamed) {
  const int32_t port = free_port();
  try {
    make_tcp_store(rank_at(1, 2, port), 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("can't reach 127.0.0.1:" + std::to_string(port)));
  }
}

TEST(TcpStore, CarriesAFabric) {
  const int32_t port = free_port();
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const auto device = std::make_shared<CpuDevice>(CpuDevice::Memory::kHost);
  const auto library = make_nccl_for_threads(device);
  std::vector<NcclJob> jobs;
  for (int32_t rank = 0; rank < 3; ++rank)
    jobs.push_back({device, library, make_tcp_store(rank_at(rank, 3, port), 20), rank, 3, {}});
  const double begun = wall_seconds();
  EXPECT_THROW(run_nccl_thread_ranks(jobs,
                                     [&](Fabric& fabric) {
                                       suite::check_all(fabric, seed);
                                       if (fabric.rank() == 2) throw Error("no more memory");
                                       fabric.barrier("step 1");
                                     }),
               Error);
  EXPECT_LT(wall_seconds() - begun, 10);
}

TEST(CudaDevice, WithoutOneThatIsWhatTheErrorSays) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  EXPECT_THROW(make_cuda_device(0), InputError);
}

TEST(NcclLibrary, MakesIdentities) {
  std::string id;
  const NcclResult result = make_nccl_library(0)->get_unique_id(&id);
  if (result != NcclResult::kSuccess) GTEST_SKIP() << nccl_text(result);
  EXPECT_EQ(id.size(), 128u);
}

}  // namespace
}  // namespace distca
