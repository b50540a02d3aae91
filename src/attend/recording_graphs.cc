// Graphs of the recording device: its operations as calls that are done again, on the same memory.
#include "attend/device_graph.h"
#include "attend/recording_state.h"

namespace distca::testing {
namespace {

class RecordingGraph : public DeviceGraph {
 public:
  explicit RecordingGraph(DeviceState& state) : state_(state) {}
  ~RecordingGraph() override { give_up(); }

  void begin() override { state_.graph = &calls_; }
  bool empty() override { return calls_.empty(); }
  void end() override { state_.graph = nullptr; }
  void give_up() noexcept override {
    if (state_.graph == &calls_) state_.graph = nullptr;
  }
  void run() override {
    for (const auto& call : calls_) call();
  }

 private:
  DeviceState& state_;
  GraphCalls calls_;
};

class RecordingPool : public GraphPool {
 public:
  explicit RecordingPool(at::Device device)
      : index_(static_cast<size_t>(device.index())), state_(recording_state().devices[index_]) {
    stream_ = state_.streams++;
  }

  std::unique_ptr<DeviceGraph> make() override { return std::make_unique<RecordingGraph>(state_); }
  std::shared_ptr<void> recording_stream() override {
    const c10::StreamId home = current_streams[index_];
    state_.graph_home = home;
    state_.graph_memory.clear();
    current_streams[index_] = stream_;
    const auto back = [index = index_, home](void*) { current_streams[index] = home; };
    return {this, back};
  }

 private:
  const size_t index_;
  DeviceState& state_;
  c10::StreamId stream_;
};

}  // namespace

void register_recording_graphs() {
  register_graph_pools(at::kPrivateUse1,
                       [](at::Device device) { return std::make_unique<RecordingPool>(device); });
}

}  // namespace distca::testing
