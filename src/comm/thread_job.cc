#include "comm/thread_job.h"

namespace distca {

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
