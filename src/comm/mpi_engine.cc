#include "comm/mpi_engine.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "comm/mpi_transport.h"
#include "comm/report.h"

namespace distca {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int32_t kCallMessage = 1, kFailureMessage = 2;
constexpr int32_t kTags = 30000;  // any MPI has as many; so many calls are never under way at once
constexpr milliseconds kSettle{300}, kLastWords{1500}, kEcho{300}, kAbort{2000};

auto find_pair(MpiCall& call, int32_t peer) {
  return std::find_if(call.pairs.begin(), call.pairs.end(),
                      [&](const MpiPair& pair) { return pair.peer == peer; });
}

/// The part of a key that says which operations its number counts.
auto series(const MpiKey& key) {
  return std::tuple(std::get<0>(key), std::get<1>(key), std::get<2>(key));
}

int64_t sum(const std::vector<int64_t>& values) {
  int64_t total = 0;
  for (int64_t value : values) total += value;
  return total;
}

std::string gather(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out.append(segment.data, segment.bytes);
  return out;
}

void scatter(const std::string& data, const std::vector<Segment>& segments) {
  int64_t at = 0;
  for (const Segment& segment : segments) {
    std::memcpy(segment.data, data.data() + at, segment.bytes);
    at += segment.bytes;
  }
}

}  // namespace

MpiEngine::MpiEngine(const FabricOptions& options) : options_(options), parent_(getppid()) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  wake_rank_.wait(lock, [this] { return state_ != State::kStarting; });
  if (!start_error_.empty()) {
    lock.unlock();
    thread_.join();
    throw Error(start_error_);
  }
}

MpiEngine::~MpiEngine() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    state_ = State::kStopping;
  }
  wake_engine_.notify_all();
  thread_.join();
}

void MpiEngine::enter(const std::shared_ptr<MpiCall>& call) {
  std::lock_guard lock(mutex_);
  if (failed_) throw Error(last_error_ = stopped_message(rank_, {}, call->name, failure_.text));
  entered_[series(call->key)] = std::get<3>(call->key) + 1;
  call->open = static_cast<int64_t>(call->pairs.size());
  call->open_coming = std::count_if(call->pairs.begin(), call->pairs.end(),
                                    [](const MpiPair& pair) { return sum(pair.expects) > 0; });
  if (call->open > 0) calls_[call->key] = call;
  for (MpiPair& pair : call->pairs) {
    pair.tag = 1 + tags_++ % kTags;
    CallMessage message{call->key, call->name, call->what, pair.tag, pair.sends, pair.expects, {}};
    if (sum(pair.sends) <= kShortBytes) message.data = gather(pair.send);
    outgoing_.push_back({pair.peer, kCallMessage, encode(message)});
  }
  fresh_.push_back(call->key);
  wake_engine_.notify_all();
}

std::vector<int32_t> MpiEngine::missing(const MpiCall& call) const {
  std::vector<int32_t> absent, slow;
  for (const MpiPair& pair : call.pairs) {
    if (!pair.met) absent.push_back(pair.peer);
    if (pair.met && pair.transfers > 0) slow.push_back(pair.peer);
  }
  std::vector<int32_t>& out = absent.empty() ? slow : absent;
  std::sort(out.begin(), out.end());
  return out;
}

void MpiEngine::wait(const MpiCall& call) {
  wait_for(call, call.open);
}

void MpiEngine::wait_arrived(const MpiCall& call) {
  wait_for(call, call.open_coming);
}

void MpiEngine::wait_for(const MpiCall& call, const int64_t& open) {
  std::unique_lock lock(mutex_);
  const auto timeout = std::chrono::duration<double>(options_.timeout_s);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  const bool ready = wake_rank_.wait_until(lock, deadline, [&] { return open == 0 || failed_; });
  if (open == 0) return;
  if (!ready) {
    last_error_ = timeout_message(rank_, options_.timeout_s, missing(call), call.name);
  } else if (failure_.rank == rank_) {
    last_error_ = failure_.text;
  } else {
    last_error_ = stopped_message(rank_, missing(call), call.name, failure_.text);
  }
  throw Error(last_error_);
}

bool MpiEngine::done(const MpiCall& call) {
  std::lock_guard lock(mutex_);
  return call.open == 0 || failed_;
}

bool MpiEngine::arrived(const MpiCall& call) {
  std::lock_guard lock(mutex_);
  return call.open_coming == 0 || failed_;
}

void MpiEngine::leave(MpiCall& call) {
  std::unique_lock lock(mutex_);
  if (call.open == 0) return;
  calls_.erase(call.key);
  left_.insert(call.key);
  if (std::uncaught_exceptions() == 0) {
    fail_locked({rank_, false, with_rank(rank_, format("gave up {} before it was done", call.name))});
  }
  const bool settled = wake_rank_.wait_for(lock, kSettle, [&] {
    return std::all_of(call.pairs.begin(), call.pairs.end(),
                       [](const MpiPair& pair) { return pair.transfers == 0; });
  });
  if (settled) return;
  const std::string words = last_error_.empty() ? failure_.text : last_error_;
  lock.unlock();
  end_job(words, false);
}

void MpiEngine::fail(const std::string& message, bool input_error) {
  std::lock_guard lock(mutex_);
  fail_locked({rank_, input_error, with_rank(rank_, message)});
}

void MpiEngine::fail_locked(const FailureMessage& failure) {
  if (failed_) return;
  failed_ = true;
  failure_ = failure;
  for (int32_t peer = 0; peer < world_size_ && failure.rank == rank_; ++peer) {
    if (peer != rank_) outgoing_.push_back({peer, kFailureMessage, encode(failure)});
  }
  wake_rank_.notify_all();
  wake_engine_.notify_all();
}

void MpiEngine::end_job(const std::string& message, bool input_error) {
  const std::string words = with_rank(rank_, message);
  std::unique_lock lock(mutex_);
  // Wrong input is often found by all ranks at once; then one line is enough.
  const auto echoed = [&] {
    return failed_ && failure_.rank < rank_ && failure_.text == with_rank(failure_.rank, message);
  };
  const bool echo = input_error && rank_ > 0 && wake_rank_.wait_for(lock, kEcho, echoed);
  fail_locked({rank_, input_error, words});
  lock.unlock();
  std::fflush(nullptr);
  if (!echo) std::fputs(("distca: " + words + "\n").c_str(), stderr);
  std::this_thread::sleep_for(kLastWords);
  lock.lock();
  const int code = failure_.input_error ? 2 : 1;
  state_ = State::kAborting;
  wake_engine_.notify_all();
  lock.unlock();
  std::this_thread::sleep_for(kAbort);
  std::_Exit(code);
}

void MpiEngine::run() {
  prctl(PR_SET_TIMERSLACK, 1000);
  try {
    transport_ = std::make_unique<MpiTransport>();
  } catch (const Error& error) {
    start_error_ = error.what();
  }
  {
    std::lock_guard lock(mutex_);
    state_ = State::kRunning;
    if (transport_) rank_ = transport_->rank();
    if (transport_) world_size_ = transport_->world_size();
  }
  wake_rank_.notify_all();
  while (transport_) {
    try {
      const bool moved = make_progress();
      std::unique_lock lock(mutex_);
      if (state_ == State::kStopping && outgoing_.empty()) break;
      if (state_ == State::kAborting) transport_->abort(failure_.input_error ? 2 : 1);
      sleep(lock, moved);
    } catch (const Error& error) {
      fail(error.what(), false);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  if (transport_) transport_->finalize();
}

bool MpiEngine::make_progress() {
  if (getppid() != parent_) std::_Exit(1);  // the launcher died
  std::deque<Outgoing> outgoing;
  {
    std::lock_guard lock(mutex_);
    outgoing.swap(outgoing_);
  }
  for (Outgoing& message : outgoing)
    transport_->post_message(message.peer, message.kind, std::move(message.bytes));
  int64_t moved = transport_->poll_messages([&](int32_t peer, int32_t kind, const std::string& bytes) {
    std::lock_guard lock(mutex_);
    if (kind == kFailureMessage) return fail_locked(decode_failure(bytes));
    CallMessage message = decode_call(bytes);
    early_[message.key].push_back({peer, message});
    fresh_.push_back(message.key);
  });
  {
    std::lock_guard lock(mutex_);
    std::vector<MpiKey> keys;
    keys.swap(fresh_);
    for (const MpiKey& key : keys) match(key);
  }
  moved += transport_->poll_transfers([&](MpiCall& call, MpiPair& pair, bool coming) {
    std::lock_guard lock(mutex_);
    --pair.transfers;
    if (coming && --pair.coming == 0) all_came(call, pair);
    close_if_done(call, pair);
  });
  return moved > 0 || !outgoing.empty();
}

void MpiEngine::sleep(std::unique_lock<std::mutex>& lock, bool moved) {
  const bool busy = !calls_.empty() || transport_->has_transfers();
  idle_us_ = moved ? 20 : std::min<int64_t>(idle_us_ * 2, busy ? 200 : 2000);
  const State state = state_;
  wake_engine_.wait_for(lock, microseconds(idle_us_), [&] { return !outgoing_.empty() || state_ != state; });
}

void MpiEngine::match(const MpiKey& key) {
  const auto early = early_.find(key);
  if (early == early_.end() || std::get<3>(key) >= entered_[series(key)]) return;
  const auto messages = std::move(early->second);
  early_.erase(early);
  if (left_.count(key)) return;
  const auto found = calls_.find(key);
  const std::shared_ptr<MpiCall> call = found == calls_.end() ? nullptr : found->second;
  for (const auto& [peer, message] : messages) {
    const std::string fault = disagreement(call.get(), peer, message);
    if (!fault.empty()) return fail_locked({rank_, false, with_rank(rank_, fault)});
    begin(call, *find_pair(*call, peer), message);
  }
}

std::string MpiEngine::disagreement(MpiCall* call, int32_t peer, const CallMessage& message) const {
  if (call && call->what != message.what) return mismatch_message(rank_, call->what, peer, message.what);
  const auto pair = call ? find_pair(*call, peer) : std::vector<MpiPair>::iterator();
  const bool known = call && pair != call->pairs.end();
  for (size_t part = 0; part < message.sends.size(); ++part) {
    const int64_t sent = known ? pair->sends[part] : 0, expected = known ? pair->expects[part] : 0;
    if (message.sends[part] != expected) {
      return size_message(part, message.name, peer, message.sends[part], rank_, expected);
    }
    if (message.expects[part] != sent) {
      return size_message(part, message.name, rank_, sent, peer, message.expects[part]);
    }
  }
  return known ? "" : mismatch_message(rank_, "something without it", peer, message.what);
}

void MpiEngine::begin(const std::shared_ptr<MpiCall>& call, MpiPair& pair, const CallMessage& message) {
  const size_t index = &pair - call->pairs.data();
  pair.met = true;
  if (sum(pair.expects) <= kShortBytes) {
    scatter(message.data, pair.receive);
    if (sum(pair.expects) > 0) all_came(*call, pair);
  } else {
    pair.transfers = pair.coming = transport_->receive(pair.receive, pair.tag, call, index);
  }
  if (sum(pair.sends) > kShortBytes) pair.transfers += transport_->send(pair.send, message.tag, call, index);
  close_if_done(*call, pair);
}

void MpiEngine::all_came(MpiCall& call, const MpiPair& pair) {
  if (--call.open_coming == 0) call.arrival = {wall_seconds(), pair.peer};
}

void MpiEngine::close_if_done(MpiCall& call, const MpiPair& pair) {
  if (pair.transfers == 0 && --call.open == 0) {
    call.end = {wall_seconds(), pair.peer};
    calls_.erase(call.key);
  }
  wake_rank_.notify_all();
}

}  // namespace distca
