#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include "base/clock.h"
#include "base/message.h"
#include "comm/nccl_engine.h"
#include "comm/report.h"

namespace distca {
namespace {

constexpr double kLookSeconds = .02;      // between looks at what is under way
constexpr double kStoreLookSeconds = .2;  // between looks at what other ranks say
constexpr double kEndSeconds = 5;         // for the thread to end what is left

}  // namespace

double NcclEngine::watch() {
  try {
    if (!has_failed()) {
      look_at_operations();
      look_at_links();
      if (const auto late = next_late()) report_late(*late);
    }
    if (wall_seconds() >= next_store_look_) {
      next_store_look_ = wall_seconds() + kStoreLookSeconds;
      answer();
      if (const auto failure = store().get("failure", 0)) set_failure(*failure, false);
    }
  } catch (const std::exception& error) {
    abort(message_of(error));
  }
  if (has_failed()) end_links();
  return std::min(kLookSeconds, job_.options.timeout_s / 10);
}

void NcclEngine::look_at_operations() {
  std::vector<std::shared_ptr<NcclOperation>> queued, issued;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(under_way_, [](const auto& operation) { return operation->over; });
    for (const auto& operation : under_way_) (operation->queued ? queued : issued).push_back(operation);
  }
  for (const auto& operation : issued) look_at_issued(*operation);
  std::set<const NcclLink*> stuck;  // what comes later on the same stream needn't be asked for
  for (const auto& operation : queued) {
    if (stuck.contains(operation->link.get())) continue;
    const bool end_done = device().done(operation->end);
    const bool start_done = end_done || device().done(operation->start);
    const std::lock_guard lock(mutex_);
    update(*operation, start_done, end_done);
    if (!end_done) stuck.insert(operation->link.get());
  }
}

void NcclEngine::look_at_issued(NcclOperation& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!operation.issued || operation.matched) return;
  }
  NcclLink& link = *operation.link;
  const NcclResult result = link.locked([&] { return library().async_error(link.communicator); });
  const std::lock_guard lock(mutex_);
  operation.matched = result == NcclResult::kSuccess;
}

void NcclEngine::look_at_links() {
  std::vector<std::shared_ptr<NcclLink>> links;
  {
    const std::lock_guard lock(mutex_);
    links = links_;
  }
  for (const auto& link : links) {
    const NcclResult result = link->locked([&] {
      return link->connected ? library().async_error(link->communicator) : NcclResult::kInProgress;
    });
    if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) continue;
    const std::string error = error_text(*link, result);
    const std::lock_guard lock(mutex_);
    for (const auto& operation : under_way_) {
      if (operation->link != link || operation->over) continue;
      operation->error = error;
      return;
    }
    // With nothing under way there, nothing is lost yet.
  }
}

std::shared_ptr<NcclOperation> NcclEngine::next_late() {
  const double now = wall_seconds();
  const std::lock_guard lock(mutex_);
  for (const auto& operation : under_way_) {
    if (operation->over) continue;
    if (!operation->error.empty()) return operation;
    if (operation->peers.empty()) continue;
    // What waits for its turn on a stream isn't late: what it waits for is. Nor is what waits for the rank
    // itself to look at it.
    const bool counts = operation->queued ? operation->started : !operation->matched;
    if (counts && now - operation->since > job_.options.timeout_s) return operation;
  }
  return nullptr;
}

void NcclEngine::report_late(NcclOperation& operation) {
  double waited = 0;
  std::string error;
  {
    const std::lock_guard lock(mutex_);
    waited = wall_seconds() - operation.since;
    error = operation.error;
  }
  const std::map<int32_t, RankPosition> answers = ask(!error.empty());
  if (const auto failure = store().get("failure", 0)) {
    set_failure(*failure, false);
    return;
  }
  const std::vector<int32_t> late = late_peers(operation.late(), answers);
  const std::string text = lateness_text(operation.late(), late, answers);
  if (error.empty()) {
    fail(timeout_message(job_.rank, waited, late, operation.name) + text, true);
  } else {
    fail(format("rank {} lost {} in {}: NCCL reports '{}'{}", job_.rank, rank_list(late), operation.name,
                error, text),
         true);
  }
}

std::map<int32_t, RankPosition> NcclEngine::ask(bool to_the_end) {
  const int64_t question = store().add("questions", 1);
  std::map<int32_t, RankPosition> answers;
  const double last = wall_seconds() + job_.options.grace_s;
  for (bool complete = false; !complete || to_the_end;) {
    answer();
    for (int32_t rank = 0; rank < job_.world_size; ++rank) {
      if (answers.contains(rank)) continue;
      const auto text = store().get(format("position of rank {}", rank), 0);
      if (!text) continue;
      const size_t end = text->find(' ');
      if (std::stoll(text->substr(0, end)) >= question) answers[rank] = decode_position(text->substr(end));
    }
    complete = static_cast<int32_t>(answers.size()) == job_.world_size;
    if (wall_seconds() > last || (to_the_end && store().get("failure", 0))) break;
    if (!complete || to_the_end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return answers;
}

void NcclEngine::answer() {
  // A counter, as of two ranks that ask at once the later must not be overwritten by the earlier.
  const int64_t question = store().add("questions", 0);
  if (question <= answered_) return;
  answered_ = question;
  store().set(format("position of rank {}", job_.rank), format("{} {}", question, encode(position())));
}

void NcclEngine::say_last() {
  RankPosition last = position();
  last.ended = true;
  try {
    const int64_t any_question = std::numeric_limits<int64_t>::max();
    store().set(format("position of rank {}", job_.rank), format("{} {}", any_question, encode(last)));
  } catch (const std::exception&) {  // the store may have gone with a rank that ended before
  }
}

RankPosition NcclEngine::position() {
  const std::lock_guard lock(mutex_);
  RankPosition out;
  for (const auto& link : links_) out.links[link->path] = link->position;
  out.last = last_name_;
  out.last_s = wall_seconds() - last_begun_;
  for (const auto& operation : under_way_) {
    if (operation->over || operation->peers.empty()) continue;
    if (out.error.empty()) out.error = operation->error;
    if (!out.waits_in.empty()) continue;
    out.waits_in = operation->name;
    out.waits_for = operation->peers;
  }
  return out;
}

NcclWatch::NcclWatch(std::shared_ptr<NcclEngine> engine)
    : engine_(std::move(engine)), state_(std::make_shared<State>()) {
  thread_ = std::thread([engine = engine_, state = state_] {
    std::unique_lock lock(state->mutex);
    while (!state->stopping) {
      lock.unlock();
      const double seconds = engine->watch();
      lock.lock();
      state->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state->stopping; });
    }
    lock.unlock();
    engine->say_last();
    engine->end_links();
    lock.lock();
    state->ended = true;
    state->changed.notify_all();
  });
}

NcclWatch::~NcclWatch() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, std::chrono::duration<double>(kEndSeconds),
                                              [&] { return state_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

}  // namespace distca
