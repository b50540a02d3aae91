#include "comm/nccl_faults.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace distca::testing {
namespace {

thread_local int32_t rank_of_thread = -1;

/// Calls of the inner library on the stream given.
using InnerCall = std::function<NcclResult(Stream)>;

/// What the real NCCL does behind its calls: a thread of each communicator hands groups to the device one
/// after the other, while the caller's stream already waits.
class Launcher {
 public:
  Launcher(NcclApi& inner, CpuDevice& device, NcclCommunicator communicator, std::function<double()> delay)
      : inner_(inner),
        device_(device),
        communicator_(communicator),
        delay_(std::move(delay)),
        hidden_(device.make_stream("launches")),
        thread_([this] { run(); }) {}

  ~Launcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
    for (const Group& group : groups_) device_.open(group.gate);
  }

  void launch(std::vector<InnerCall> calls, Stream stream) {
    Group group{std::move(calls), device_.record(stream), device_.make_gate()};
    device_.wait(stream, group.gate);
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
    changed_.notify_all();
  }

  bool busy() {
    const std::lock_guard lock(mutex_);
    return !groups_.empty();
  }

 private:
  struct Group {
    std::vector<InnerCall> calls;
    Event ready, gate;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !groups_.empty(); });
      if (stopping_) return;
      const Group group = groups_.front();
      const double seconds = delay_();
      const auto stopped = [&] { return stopping_; };
      if (seconds < 0) changed_.wait(lock, stopped);
      if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), stopped)) return;
      lock.unlock();
      const bool done = move(group);
      lock.lock();
      if (!done) return;
      groups_.pop_front();
      device_.open(group.gate);
    }
  }

  /// Returns false where it was stopped, or the inner library failed.
  bool move(const Group& group) {
    device_.wait(hidden_, group.ready);
    inner_.group_start();
    for (const InnerCall& call : group.calls) call(hidden_);
    NcclResult result = inner_.group_end();
    const auto pause = [&] {
      std::unique_lock lock(mutex_);
      return !changed_.wait_for(lock, std::chrono::microseconds(50), [&] { return stopping_; });
    };
    while (result == NcclResult::kInProgress && pause()) result = inner_.async_error(communicator_);
    if (result != NcclResult::kSuccess) return false;
    const Event end = device_.record(hidden_);
    while (!device_.done(end)) {
      if (!pause()) return false;
    }
    return true;
  }

  NcclApi& inner_;
  CpuDevice& device_;
  NcclCommunicator communicator_;
  std::function<double()> delay_;
  Stream hidden_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Group> groups_;  // the first is on its way
  bool stopping_ = false;
  std::thread thread_;
};

class FaultyNccl : public NcclApi {
 public:
  FaultyNccl(std::shared_ptr<NcclApi> inner, std::shared_ptr<CpuDevice> device, NcclFaults faults)
      : inner_(std::move(inner)), device_(std::move(device)), faults_(std::move(faults)) {}

  NcclResult get_unique_id(std::string* id) override {
    const NcclResult fault = before("get_unique_id", std::max(rank_of_thread, 0));
    return fault != NcclResult::kSuccess ? fault : inner_->get_unique_id(id);
  }

  NcclResult comm_init_rank(NcclCommunicator* communicator, int32_t ranks, const std::string& id,
                            int32_t rank) override {
    if (rank_of_thread < 0) rank_of_thread = rank;  // the first is that of the job
    const NcclResult fault = before("comm_init_rank", rank_of_thread);
    if (fault != NcclResult::kSuccess) return fault;
    const NcclResult result = inner_->comm_init_rank(communicator, ranks, id, rank);
    add(*communicator, rank_of_thread);
    return result;
  }
  NcclResult comm_split(NcclCommunicator parent, int32_t color, int32_t key,
                        NcclCommunicator* child) override {
    const NcclResult fault = before("comm_split", rank_of_thread);
    return fault != NcclResult::kSuccess ? fault : inner_->comm_split(parent, color, key, child);
  }

  NcclResult group_start() override {
    grouped_ = true;
    return NcclResult::kSuccess;
  }
  NcclResult group_end() override {
    grouped_ = false;
    const NcclResult fault = before("group_end", rank_of_thread);
    std::vector<InnerCall> calls = std::exchange(calls_, {});
    return fault != NcclResult::kSuccess ? fault : launch(std::move(calls), communicator_, stream_);
  }

  NcclResult send(const void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                  Stream stream) override {
    return take("send", communicator, stream,
                [=, this](Stream on) { return inner_->send(data, bytes, peer, communicator, on); });
  }
  NcclResult receive(void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                     Stream stream) override {
    return take("receive", communicator, stream,
                [=, this](Stream on) { return inner_->receive(data, bytes, peer, communicator, on); });
  }
  NcclResult all_reduce(const void* data, void* out, int64_t count, DType dtype, ReduceOp op,
                        NcclCommunicator communicator, Stream stream) override {
    return take("all_reduce", communicator, stream, [=, this](Stream on) {
      return inner_->all_reduce(data, out, count, dtype, op, communicator, on);
    });
  }
  NcclResult reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                            NcclCommunicator communicator, Stream stream) override {
    return take("reduce_scatter", communicator, stream, [=, this](Stream on) {
      return inner_->reduce_scatter(data, out, count, dtype, communicator, on);
    });
  }
  NcclResult all_gather(const void* data, void* out, int64_t bytes, NcclCommunicator communicator,
                        Stream stream) override {
    return take("all_gather", communicator, stream,
                [=, this](Stream on) { return inner_->all_gather(data, out, bytes, communicator, on); });
  }
  NcclResult broadcast(void* data, int64_t bytes, int32_t root, NcclCommunicator communicator,
                       Stream stream) override {
    return take("broadcast", communicator, stream,
                [=, this](Stream on) { return inner_->broadcast(data, bytes, root, communicator, on); });
  }

  NcclResult async_error(NcclCommunicator communicator) override {
    const NcclResult result = inner_->async_error(communicator);
    const std::lock_guard lock(mutex_);
    const auto end = ends_.find(communicator.handle);
    if (end == ends_.end()) return result;
    if (faults_.report && faults_.report(end->second.rank) != NcclResult::kSuccess)
      return faults_.report(end->second.rank);
    const bool launching = end->second.launcher && end->second.launcher->busy();
    return result == NcclResult::kInProgress && launching ? NcclResult::kSuccess : result;
  }
  std::string last_error(NcclCommunicator communicator) override { return inner_->last_error(communicator); }

  NcclResult abort(NcclCommunicator communicator) override {
    before("abort", take_end(communicator).rank);
    return inner_->abort(communicator);
  }
  NcclResult finalize(NcclCommunicator communicator) override { return async_error(communicator); }
  NcclResult destroy(NcclCommunicator communicator) override {
    take_end(communicator);
    return inner_->destroy(communicator);
  }

 private:
  /// A rank's end of a communicator.
  struct End {
    int32_t rank = 0;
    std::unique_ptr<Launcher> launcher;
  };

  NcclResult before(const std::string& function, int32_t rank) {
    return faults_.before ? faults_.before(rank, function) : NcclResult::kSuccess;
  }

  Launcher* add(NcclCommunicator communicator, int32_t rank) {
    const std::lock_guard lock(mutex_);
    End& end = ends_[communicator.handle];
    end.rank = rank;
    if (faults_.launch && !end.launcher) {
      end.launcher = std::make_unique<Launcher>(*inner_, *device_, communicator,
                                                [this, rank] { return faults_.launch(rank); });
    }
    return end.launcher.get();
  }
  End take_end(NcclCommunicator communicator) {
    const std::lock_guard lock(mutex_);
    auto end = ends_.extract(communicator.handle);
    return end.empty() ? End{} : std::move(end.mapped());
  }

  NcclResult take(const char* function, NcclCommunicator communicator, Stream stream, InnerCall call) {
    const NcclResult fault = before(function, rank_of_thread);
    if (fault != NcclResult::kSuccess) return fault;
    if (!grouped_) return launch({std::move(call)}, communicator, stream);
    communicator_ = communicator;
    stream_ = stream;
    calls_.push_back(std::move(call));
    return NcclResult::kSuccess;
  }

  NcclResult launch(std::vector<InnerCall> calls, NcclCommunicator communicator, Stream stream) {
    if (calls.empty()) return NcclResult::kSuccess;
    if (Launcher* launcher = add(communicator, rank_of_thread)) {
      launcher->launch(std::move(calls), stream);
      return NcclResult::kInProgress;
    }
    inner_->group_start();
    for (const InnerCall& call : calls) call(stream);
    return inner_->group_end();
  }

  std::shared_ptr<NcclApi> inner_;
  std::shared_ptr<CpuDevice> device_;
  NcclFaults faults_;
  std::mutex mutex_;
  std::map<void*, End> ends_;

  // Of the group that the calling thread makes.
  static inline thread_local bool grouped_ = false;
  static inline thread_local NcclCommunicator communicator_;
  static inline thread_local Stream stream_;
  static inline thread_local std::vector<InnerCall> calls_;
};

}  // namespace

std::shared_ptr<NcclApi> make_faulty_nccl(std::shared_ptr<NcclApi> inner, std::shared_ptr<CpuDevice> device,
                                          NcclFaults faults) {
  return std::make_shared<FaultyNccl>(std::move(inner), std::move(device), std::move(faults));
}

}  // namespace distca::testing
