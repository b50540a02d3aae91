// Work on a device that is recorded once and then started again as one: a CUDA graph. Recording it runs
// nothing; what it reads, writes and allocates has the same addresses in every run, so what goes in is
// copied to where the graph reads it, and what comes out stays where it is until the next run.
//
// A CapturedWork is such work with steps of the host in between, which no graph can hold: the collectives of
// a tensor-parallel group, which are watched and have a timeout. It is cut there into a graph before the step
// and one after it.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace distca {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// From now on what this thread, and autograd's for it, start on the device is recorded instead of run.
  virtual void begin() = 0;
  /// While recording: whether nothing was recorded yet.
  virtual bool empty() = 0;
  virtual void end() = 0;
  /// Ends a recording that failed; the graph can't run.
  virtual void give_up() noexcept = 0;
  /// Starts all that was recorded on the thread's current stream.
  virtual void run() = 0;
};

/// Graphs that share memory, which is theirs as long as the pool lives: they must run in the order in which
/// they were recorded. Used by one rank.
class GraphPool {
 public:
  virtual ~GraphPool() = default;
  virtual std::unique_ptr<DeviceGraph> make() = 0;
  /// Until the guard goes, the calling thread's work goes to a stream on which graphs can be recorded.
  virtual std::shared_ptr<void> recording_stream() = 0;
};

/// Throws InputError where that kind of device has no graphs.
std::unique_ptr<GraphPool> make_graph_pool(at::Device device);
bool has_graphs(at::DeviceType device);

/// For a kind of device that isn't built in.
void register_graph_pools(at::DeviceType device, std::function<std::unique_ptr<GraphPool>(at::Device)> make);

class CapturedWork {
 public:
  /// Records what `body` starts, without running it. Throws Error, which says that `name` can't be captured
  /// and why: the host waits for the device in it, or what the device said.
  void capture(GraphPool& pool, const std::string& name, const std::function<void()>& body);
  /// Called by what `body` calls, in place of doing `step`: it is done in every run, after what was recorded
  /// so far was started.
  void between(std::function<void()> step);

  bool captured() const { return captured_; }
  /// Starts the work on the current stream. May be called again and again.
  void run();

 private:
  struct Part {
    std::vector<std::function<void()>> steps;  // of the host, before the graph
    std::unique_ptr<DeviceGraph> graph;        // null: nothing follows the steps
  };

  GraphPool* pool_ = nullptr;  // while recording
  std::vector<Part> parts_;
  bool captured_ = false;
};

}  // namespace distca
