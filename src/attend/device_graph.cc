#include "attend/device_graph.h"

#include <map>
#include <mutex>
#include <utility>

#include "attend/device_graph_cuda.h"
#include "base/check.h"

namespace distca {
namespace {

using PoolMaker = std::function<std::unique_ptr<GraphPool>(at::Device)>;

struct PoolMakers {
  std::mutex mutex;
  std::map<at::DeviceType, PoolMaker> by_device;
};

PoolMakers& pool_makers() {
  static PoolMakers& makers = *new PoolMakers;
  return makers;
}

PoolMaker pool_maker(at::DeviceType device) {
#if DISTCA_CUDA
  if (device == at::kCUDA) return make_cuda_graph_pool;
#endif
  PoolMakers& makers = pool_makers();
  const std::lock_guard lock(makers.mutex);
  const auto found = makers.by_device.find(device);
  return found == makers.by_device.end() ? PoolMaker() : found->second;
}

}  // namespace

void register_graph_pools(at::DeviceType device, PoolMaker make) {
  PoolMakers& makers = pool_makers();
  const std::lock_guard lock(makers.mutex);
  makers.by_device[device] = std::move(make);
}

bool has_graphs(at::DeviceType device) {
  return pool_maker(device) != nullptr;
}

std::unique_ptr<GraphPool> make_graph_pool(at::Device device) {
  const PoolMaker make = pool_maker(device.type());
  DISTCA_CHECK_INPUT(make != nullptr, "work on device '{}' can't be captured in graphs: only 'cuda' has them",
                     c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  return make(device);
}

void CapturedWork::capture(GraphPool& pool, const std::string& name, const std::function<void()>& body) {
  DISTCA_CHECK(!captured_ && pool_ == nullptr, "{} is captured already", name);
  const std::shared_ptr<void> stream = pool.recording_stream();
  pool_ = &pool;
  try {
    parts_.push_back({{}, pool.make()});
    parts_.back().graph->begin();
    body();
    Part& last = parts_.back();
    const bool empty = last.graph->empty();
    last.graph->end();
    if (empty) last.graph = nullptr;
  } catch (const std::exception& error) {
    if (!parts_.empty() && parts_.back().graph != nullptr) parts_.back().graph->give_up();
    parts_.clear();
    pool_ = nullptr;
    throw Error(format("{} can't be captured in a graph: {}", name, error.what()));
  }
  pool_ = nullptr;
  captured_ = true;
}

void CapturedWork::between(std::function<void()> step) {
  DISTCA_CHECK(pool_ != nullptr, "a step of the host outside of a capture");
  if (!parts_.back().graph->empty()) {
    parts_.back().graph->end();
    parts_.push_back({{}, pool_->make()});
    parts_.back().graph->begin();
  }
  parts_.back().steps.push_back(std::move(step));
}

void CapturedWork::run() {
  DISTCA_CHECK(captured_, "what wasn't captured can't run");
  for (const Part& part : parts_) {
    for (const auto& step : part.steps) step();
    if (part.graph != nullptr) part.graph->run();
  }
}

}  // namespace distca
