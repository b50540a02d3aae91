#include "comm/thread_job.h"

#include <set>

namespace distca {

ThreadJob::ThreadJob(int32_t ranks, const FabricOptions& options) : options_(options), sleepers_(ranks) {
  const bool is_virtual = options.link.clock == LinkOptions::Clock::kVirtual;
  if (is_virtual) clocks_.emplace(ranks, options.link.cores);
  const LinkModel links(options.link, ranks);  // checks the options
  if (is_virtual || LinkModel::costs_time(options.link)) links_ = links;
}

double ThreadJob::now(int32_t rank) const {
  return clocks_ ? clocks_->now(rank) : wall_seconds();
}

void ThreadJob::enter(int32_t rank) {
  if (!clocks_) return;
  const Lock lock(mutex_);
  clocks_->enter(rank);
}

void ThreadJob::leave(int32_t rank) {
  if (!clocks_) return;
  Lock lock(mutex_);
  if (clocks_->depth(rank) == 1 && !clocks_->ended(rank)) {
    // After a failure nobody's clock matters any more.
    sleepers_[rank].wait(lock, [&] { return clocks_->has_core(rank) || failed_; });
  }
  clocks_->leave(rank);
}

void ThreadJob::end(int32_t rank) {
  if (!clocks_) return;
  const Lock lock(mutex_);
  clocks_->end(rank);
  give_core(rank);
}

void ThreadJob::give_core(int32_t rank) {
  if (!clocks_) return;
  const int32_t next = clocks_->give_core(rank);
  if (next >= 0) wake(next);
}

std::vector<std::shared_ptr<Transfer>> ThreadJob::post(
    int32_t from, const std::vector<std::pair<int32_t, int64_t>>& messages) {
  const double now = this->now(from);
  std::vector<std::shared_ptr<Transfer>> out;
  for (const auto& [to, bytes] : messages) out.push_back(links_->post(from, to, bytes, now));
  links_->forget(clocks_ ? clocks_->least() : now);
  return out;
}

double ThreadJob::end_of(int32_t rank, const std::vector<const Transfer*>& transfers) {
  double end = 0;
  for (const Transfer* transfer : transfers) {
    links_->decide(*transfer);
    end = std::max(end, transfer->to == rank ? transfer->arrived : transfer->left);
  }
  return end;
}

void ThreadJob::wait_for(Lock& lock, int32_t rank, const std::string& name,
                         const std::vector<const Transfer*>& transfers) {
  const double end = end_of(rank, transfers);
  if (clocks_) return clocks_->raise(rank, end);
  const auto missing = [&] {
    std::set<int32_t> out;
    for (const Transfer* transfer : transfers) {
      if (end_of(rank, {transfer}) > wall_seconds())
        out.insert(transfer->to == rank ? transfer->from : transfer->to);
    }
    return std::vector<int32_t>(out.begin(), out.end());
  };
  block(
      lock, rank, name, [&] { return wall_seconds() >= end; }, missing, end);
}

void ThreadJob::fail(int32_t rank, const std::string& message, bool input_error) {
  if (failed_) return;
  failed_ = true;
  input_error_ = input_error;
  failure_ = with_rank(rank, message);
  for (std::condition_variable& sleeper : sleepers_) sleeper.notify_all();
}

void ThreadJob::check_running(int32_t rank, const std::string& name) const {
  if (failed_) throw Error(stopped_message(rank, {}, name, failure_));
}

void ThreadJob::throw_failure() const {
  if (!failed_) return;
  if (input_error_) throw InputError(failure_);
  throw Error(failure_);
}

}  // namespace distca
