#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/message.h"
#include "comm/nccl_threads.h"
#include "comm/report.h"

namespace distca {
namespace {

/// The first failure of all ranks.
class FirstFailure {
 public:
  void record(int32_t rank, const std::string& message, bool input_error) {
    const std::lock_guard lock(mutex_);
    if (message_) return;
    message_ = with_rank(rank, message);
    input_error_ = input_error;
  }
  /// After all ranks have ended.
  void rethrow() const {
    if (!message_) return;
    if (input_error_) throw InputError(*message_);
    throw Error(*message_);
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> message_;
  bool input_error_ = false;
};

void run_rank(const NcclJob& job, const std::function<void(Fabric&)>& body, FirstFailure& failure) {
  std::unique_ptr<Fabric> fabric;
  const auto fail = [&](const std::string& message, bool input_error) {
    failure.record(job.rank, message, input_error);
    if (fabric) fabric->abort(message);
  };
  try {
    job.device->set_current_stream(job.device->make_stream("rank " + std::to_string(job.rank)));
    fabric = make_nccl_fabric(job);
    body(*fabric);
  } catch (const InputError& error) {
    fail(error.what(), true);
  } catch (const std::exception& error) {
    fail(message_of(error), false);
  } catch (...) {
    fail("an exception that is no std::exception", false);
  }
}

}  // namespace

void run_nccl_thread_ranks(int32_t ranks, const NcclOptions& options, const std::shared_ptr<Device>& device,
                           const std::function<void(Fabric&)>& body) {
  DISTCA_CHECK(ranks >= 1, "at least 1 rank is needed, not {}", ranks);
  const auto library = make_nccl_for_threads(device);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<NcclJob> jobs;
  for (int32_t rank = 0; rank < ranks; ++rank) jobs.push_back({device, library, store, rank, ranks, options});
  run_nccl_thread_ranks(jobs, body);
}

void run_nccl_thread_ranks(const std::vector<NcclJob>& jobs, const std::function<void(Fabric&)>& body) {
  FirstFailure failure;
  std::vector<std::thread> threads;
  for (const NcclJob& job : jobs) threads.emplace_back([&] { run_rank(job, body, failure); });
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace distca
