#include "comm/nccl_engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "comm/report.h"

namespace distca {
namespace {

constexpr double kAbortSeconds = 1;      // for communicators to end when something failed
constexpr double kReleaseSeconds = 5;    // for a communicator to become quiet
constexpr double kWatchLateSeconds = 5;  // how late the watching thread may be with its verdict

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// The error is this rank's alone, whatever the others do.
bool is_own(NcclResult result) {
  return result == NcclResult::kInvalidArgument || result == NcclResult::kInvalidUsage ||
         result == NcclResult::kDeviceError;
}

}  // namespace

void NcclEngine::wait_for_end() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(kAbortSeconds), [&] { return links_ended_; });
}

void NcclEngine::throw_failure(const std::string& name, const std::vector<int32_t>& peers) {
  wait_for_end();
  const std::lock_guard lock(mutex_);
  if (failure_->own) throw PeerError(failure_->message);
  throw PeerError(stopped_message(job_.rank, peers, name, failure_->message));
}

bool NcclEngine::has_failed() {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

void NcclEngine::check_running(const std::string& name, const std::vector<int32_t>& peers) {
  if (has_failed()) throw_failure(name, peers);
}

double NcclEngine::end_of(const NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  return operation.ended;
}

void NcclEngine::enter(const std::shared_ptr<NcclOperation>& operation) {
  check_running(operation->name);
  const std::lock_guard lock(mutex_);
  operation->number = ++operation->link->position.begun;
  operation->since = last_begun_ = wall_seconds();
  last_name_ = operation->name;
  under_way_.push_back(operation);
}

void NcclEngine::set_issued(NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  operation.issued = true;
}

void NcclEngine::queue(NcclOperation& operation, Event end) {
  const std::lock_guard lock(mutex_);
  operation.end = std::move(end);
  operation.queued = true;
}

void NcclEngine::leave(NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  update(operation, true, true);
}

void NcclEngine::drop(NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  operation.over = true;
}

void NcclEngine::update(NcclOperation& operation, bool start_done, bool end_done) {
  if (start_done && !operation.started) {
    operation.started = true;
    operation.since = wall_seconds();
  }
  if (!end_done || operation.over) return;
  operation.over = true;
  operation.ended = wall_seconds();
  if (operation.staging && operation.queued) operation.staging->set_idle();
  LinkPosition& position = operation.link->position;
  position.finished = std::max(position.finished, operation.number);
}

void NcclEngine::wait_until(NcclOperation& operation, const std::function<bool()>& ready) {
  const double begun = wall_seconds();
  const double last = begun + job_.options.timeout_s + job_.options.grace_s + kWatchLateSeconds;
  for (double pause = 20e-6;; pause = std::min(2 * pause, 1e-3)) {
    const bool is_ready = ready();
    // In this order: what is ended by a failure looks ready.
    if (has_failed()) throw_failure(operation.name, operation.peers);
    if (is_ready) return;
    if (wall_seconds() > last) {
      throw PeerError(timeout_message(job_.rank, wall_seconds() - begun, operation.peers, operation.name));
    }
    sleep_for(pause);
  }
}

bool NcclEngine::is_over(NcclOperation& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (operation.over) return true;
  }
  if (!device().done(operation.end)) return false;
  const std::lock_guard lock(mutex_);
  update(operation, true, true);
  return true;
}

std::string NcclEngine::error_text(NcclLink& link, NcclResult result) {
  std::string details;
  link.locked([&] {
    details = library().last_error(link.communicator);
    return NcclResult::kSuccess;
  });
  return nccl_text(result) + (details.empty() ? "" : ": " + details);
}

bool NcclEngine::begin_call(NcclLink& link, NcclOperation& operation,
                            const std::function<NcclResult()>& function) {
  const NcclResult result = link.locked(function);
  if (result == NcclResult::kSuccess) return true;
  if (result == NcclResult::kInProgress) return false;
  const std::string error = error_text(link, result);
  if (is_own(result)) {
    const std::string message = format("NCCL reports '{}' in {}", error, operation.name);
    abort(message);
    wait_for_end();
    throw Error(message);
  }
  {
    const std::lock_guard lock(mutex_);
    operation.error = error;
  }
  wait_until(operation, [] { return false; });  // until the watching thread knows whose fault it is
  return false;
}

bool NcclEngine::is_call_over(NcclLink& link, NcclOperation& operation) {
  return begin_call(link, operation, [&] { return library().async_error(link.communicator); });
}

void NcclEngine::call(NcclLink& link, NcclOperation& operation, const std::function<NcclResult()>& function) {
  if (begin_call(link, operation, function)) return;
  wait_until(operation, [&] { return is_call_over(link, operation); });
}

void NcclEngine::add(const std::shared_ptr<NcclLink>& link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(link);
}

void NcclEngine::release(const std::shared_ptr<NcclLink>& link) {
  // A rank on its way out of a failure leaves it to the watching thread, after all have been told.
  if (has_failed() || std::uncaught_exceptions() > 0) return;
  NcclResult result = link->locked(
      [&] { return link->connected ? library().finalize(link->communicator) : NcclResult::kInternalError; });
  const double last = wall_seconds() + std::min(job_.options.timeout_s, kReleaseSeconds);
  while (result == NcclResult::kInProgress && wall_seconds() < last) {
    sleep_for(1e-3);
    result = link->locked([&] { return library().async_error(link->communicator); });
  }
  if (result != NcclResult::kSuccess) return;
  link->locked([&] {
    link->gone = true;
    return library().destroy(link->communicator);
  });
  const std::lock_guard lock(mutex_);
  std::erase(links_, link);
}

void NcclEngine::end_links() {
  std::vector<std::shared_ptr<NcclLink>> links;
  {
    const std::lock_guard lock(mutex_);
    links = links_;
  }
  // Those made last first: an unfinished split is ended through its parent.
  for (auto link = links.rbegin(); link != links.rend(); ++link) end_link(**link);
  const std::lock_guard lock(mutex_);
  links_ended_ = true;
  changed_.notify_all();
}

void NcclEngine::end_link(NcclLink& link) {
  NcclCommunicator communicator;
  {
    const std::lock_guard calls(link.mutex);
    if (std::exchange(link.gone, true)) return;
    communicator = link.communicator;
  }
  if (communicator) library().abort(communicator);
}

bool NcclEngine::set_failure(const std::string& message, bool own) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = {message, own};
  return true;
}

void NcclEngine::fail(const std::string& message, bool own) {
  if (!set_failure(message, own)) return;
  try {
    if (store().add("failures", 1) == 1) store().set("failure", message);
  } catch (const std::exception&) {  // the others will wait in vain, and say so
  }
}

void NcclEngine::abort(const std::string& message) {
  fail(with_rank(job_.rank, message), false);
}

}  // namespace distca
