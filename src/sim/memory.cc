#include "sim/memory.h"

#include <algorithm>
#include <functional>

namespace distca {
namespace {

/// Sum of the `count` largest of `values`.
double largest(std::vector<double> values, int64_t count) {
  std::sort(values.begin(), values.end(), std::greater<>());
  double sum = 0;
  for (size_t i = 0; i < values.size() && static_cast<int64_t>(i) < count; ++i) sum += values[i];
  return sum;
}

}  // namespace

std::vector<double> memory_of_disaggregated(const ClusterSetup& setup, const DisaggregatedPlans& plans) {
  const auto layers = static_cast<double>(setup.model.layers / setup.pp);
  const int64_t homes = setup.ranks() * setup.pp;
  std::vector<double> memory;
  for (int64_t r = 0; r < setup.all_ranks(); ++r) {
    const auto rank = static_cast<size_t>(r);
    std::vector<double> tokens, received;  // of each tick
    double buffers = 0;
    for (const auto& parts : plans.forward) {
      double tick_tokens = 0, tick_received = 0;
      for (const PartWork& part : parts) {
        tick_tokens += part.tokens[rank];
        tick_received += part.received_bytes[rank];
      }
      tokens.push_back(tick_tokens);
      received.push_back(tick_received);
      buffers = std::max(buffers, 2 * tick_received);  // what came, and outputs of about the same size
    }
    const int64_t in_flight = r < homes ? 2 * (setup.pp - 1 - r / setup.ranks()) + 1 : 2 * setup.pp - 1;
    double bytes = r < homes ? state_bytes(setup) : 0;
    bytes += largest(tokens, in_flight) * activation_bytes(setup) * layers + buffers;
    if (!setup.resend) bytes += largest(received, in_flight) * (layers - 1);
    memory.push_back(bytes);
  }
  return memory;
}

std::vector<double> memory_at_home(const ClusterSetup& setup, const std::vector<PartWork>& micro_batches) {
  const auto layers = static_cast<double>(setup.model.layers / setup.pp);
  std::vector<double> memory;
  for (int64_t stage = 0; stage < setup.pp; ++stage) {
    for (size_t r = 0; r < static_cast<size_t>(setup.ranks()); ++r) {
      std::vector<double> tokens;
      double gathered = 0;
      for (const PartWork& part : micro_batches) {
        tokens.push_back(part.tokens[r]);
        gathered = std::max(gathered, part.received_bytes[r]);
      }
      memory.push_back(state_bytes(setup) +
                       largest(tokens, setup.pp - stage) * activation_bytes(setup) * layers + gathered);
    }
  }
  return memory;
}

}  // namespace distca
