// What one nano-batch asks of each rank in one layer: a plan, in the units of costs and links.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "sim/cluster.h"

namespace distca {

enum class ExchangeKind : uint8_t { kDispatch, kCollect, kBackwardDispatch, kBackwardCollect };
inline constexpr size_t kExchangeKinds = 4;

/// One exchange: what every rank sends and receives, and who must have sent before a rank has everything.
struct ExchangeWork {
  struct Flow {
    int32_t from = 0, to = 0;
    double bytes = 0;
  };
  std::vector<Flow> flows;
  std::vector<double> send_s, receive_s;  // of each rank, at its links' bandwidth
  double latency = 0;                     // 0 where nothing is sent
  double bytes = 0;                       // of all ranks' devices at one tensor-parallel index
};

struct PartWork {
  std::vector<double> tokens;     // of each rank
  std::vector<double> attention;  // row·keys (sim/step_costs.h)
  std::vector<double> gathered;   // tokens whose K and V context parallelism gets from the group
  std::array<ExchangeWork, kExchangeKinds> exchanges;  // of disaggregated attention
  std::vector<double> received_bytes;                  // Q, K and V a server gets, of one layer
};

/// A disaggregated plan over all ranks of the cluster.
PartWork disaggregated_work(const ClusterSetup& setup, const Plan& plan);

/// Ranks [first, first + setup.ranks()) of a plan whose ranks compute their own queries. Without groups
/// (policy none) a rank gathers the keys before its first row.
PartWork at_home_work(const ClusterSetup& setup, const PolicyChoice& choice, const Plan& plan, int64_t first);

}  // namespace distca
