#include "comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/check.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

std::optional<LaunchedRank> rank_of(const Variables& variables) {
  return launched_rank([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    rank_of(variables);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

const Variables kTorchrun = {{"RANK", "9"},
                             {"WORLD_SIZE", "16"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node-0"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                            {"MASTER_ADDR", "10.0.0.1"},
                            {"MASTER_PORT", "65535"}};
const Variables kSlurm = {{"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "1"},
                          {"SLURM_LOCALID", "0"},
                          {"MASTER_ADDR", "node-7"},
                          {"MASTER_PORT", "1"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Launch, NoLauncherIsNone) {
  EXPECT_FALSE(rank_of({}).has_value());
  EXPECT_FALSE(rank_of({{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node-0"}}).has_value());
}

TEST(Launch, ReadsTheVariablesOfEachLauncher) {
  const LaunchedRank torchrun = *rank_of(kTorchrun);
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.rank, 9);
  EXPECT_EQ(torchrun.world_size, 16);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.host, "node-0");
  EXPECT_EQ(torchrun.port, 29400);
  EXPECT_TRUE(torchrun.is_served);
  EXPECT_EQ(torchrun.attempt, 2);
  const LaunchedRank mpi = *rank_of(kOpenMpi);
  EXPECT_EQ(mpi.launcher, "mpirun");
  EXPECT_EQ(mpi.rank, 3);
  EXPECT_EQ(mpi.local_rank, 3);
  EXPECT_FALSE(mpi.is_served);
  EXPECT_EQ(rank_of(kSlurm)->launcher, "srun");
  EXPECT_EQ(rank_of(kSlurm)->world_size, 1);
}

TEST(Launch, TheInnermostLauncherCounts) {
  Variables all = kSlurm;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(rank_of(all)->launcher, "mpirun");
  all.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(rank_of(all)->launcher, "torchrun");
  EXPECT_FALSE(rank_of(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False"))->is_served);
}

TEST(Launch, AMissingVariableIsNamed) {
  for (const std::string name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(error_of(without(kTorchrun, name)),
                HasSubstr("started by torchrun, but the variable " + name + " is not set"));
    EXPECT_THAT(error_of(with(kTorchrun, name, "")), HasSubstr(name + " is not set"));
  }
  EXPECT_THAT(error_of(without(kOpenMpi, "MASTER_ADDR")),
              AllOf(HasSubstr("mpirun"), HasSubstr("MASTER_ADDR is not set: the machine of rank 0")));
  EXPECT_THAT(error_of(without(kSlurm, "SLURM_NTASKS")), HasSubstr("SLURM_NTASKS is not set"));
}

TEST(Launch, AMalformedVariableIsNamedWithItsValue) {
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "16")),
            "the variable RANK is '16', not a number from 0 to 15: this process's rank");
  for (const std::string value : {"-1", "two", "3x", " 3", "99999999999", "1.5"}) {
    EXPECT_THAT(error_of(with(kTorchrun, "RANK", value)), HasSubstr("the variable RANK is '" + value + "'"));
  }
  EXPECT_THAT(error_of(with(kSlurm, "MASTER_PORT", "65536")), HasSubstr("a number from 1 to 65535"));
  EXPECT_THAT(error_of(with(kSlurm, "SLURM_NTASKS", "0")), HasSubstr("SLURM_NTASKS is '0'"));
}

}  // namespace
}  // namespace distca
