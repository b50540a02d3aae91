#include "comm/thread_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"

namespace distca {
namespace {

const PeerBytes* find_peer(const std::vector<PeerBytes>& list, int32_t peer) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const PeerBytes& p) { return p.peer == peer; });
  return at == list.end() ? nullptr : &*at;
}

/// `world_peer` is the peer's rank in the job.
void close_pair(ThreadCall& call, int32_t peer, int32_t world_peer) {
  if (!call.open[peer]) return;
  call.open[peer] = false;
  --call.open_count;
  call.copied = {wall_seconds(), world_peer};
  if (call.comes[peer]) call.came = call.copied;
}

/// Runs when a call's scope is left by an exception.
template <typename Undo>
struct Guard {
  Undo undo;
  bool armed = true;
  ~Guard() {
    if (armed) undo();
  }
};
template <typename Undo>
Guard(Undo) -> Guard<Undo>;

}  // namespace

int32_t ThreadCall::open_peers(Half half) const {
  if (half == Half::kBoth) return open_count;
  int32_t count = 0;
  for (size_t peer = 0; peer < open.size(); ++peer) count += is_open(peer, half);
  return count;
}

template <typename Test>
std::vector<int32_t> ThreadGroup::select(const ThreadOperation& operation, Test test) const {
  std::vector<int32_t> out;
  for (size_t i = 0; i < operation.members.size(); ++i) {
    if (test(operation.calls[i].get(), operation.members[i]))
      out.push_back(world_ranks[operation.members[i]]);
  }
  return out;
}

void ThreadGroup::wake_members(const ThreadOperation& operation) const {
  for (int32_t member : operation.members) job->wake(world_ranks[member]);
}

std::shared_ptr<ThreadOperation> ThreadGroup::enter(int32_t rank, Key key, std::shared_ptr<ThreadCall> call) {
  job->check_running(world_ranks[rank], call->name);
  std::shared_ptr<ThreadOperation>& place = operations_[key];
  if (!place) {
    place = std::make_shared<ThreadOperation>();
    if (std::get<0>(key) < 0) {
      place->members.resize(size());
      std::iota(place->members.begin(), place->members.end(), 0);
    } else {
      place->members = {std::get<0>(key), std::get<1>(key)};
    }
    place->calls.resize(place->members.size());
  }
  const std::shared_ptr<ThreadOperation> operation = place;
  size_t index = 0;
  for (size_t i = 0; i < operation->members.size(); ++i) {
    const ThreadCall* other = operation->calls[i].get();
    if (operation->members[i] == rank) {
      index = i;
    } else if (other && other->what != call->what) {
      throw PeerError(
          mismatch_message(world_ranks[rank], call->what, world_ranks[operation->members[i]], other->what));
    }
  }
  operation->calls[index] = std::move(call);
  if (++operation->arrived == static_cast<int32_t>(operation->members.size())) {
    operations_.erase(key);
    wake_members(*operation);
  }
  return operation;
}

void ThreadGroup::begin_phase(ThreadOperation& operation, size_t index) {
  ThreadCall& call = *operation.calls[index];
  const size_t members = operation.members.size(), phase = call.transfers.size();
  // Each begins with its neighbour, so that not all queue at the same receiver.
  std::vector<size_t> peers;
  std::vector<std::pair<int32_t, int64_t>> messages;
  for (size_t step = 1; step < members; ++step) {
    const size_t peer = (index + step) % members;
    if (call.phases[phase][peer] == kNoMessage) continue;
    peers.push_back(peer);
    messages.push_back({world_ranks[operation.members[peer]], call.phases[phase][peer]});
  }
  const auto posted = job->post(world_ranks[operation.members[index]], messages);
  call.transfers.emplace_back(members);
  for (size_t i = 0; i < peers.size(); ++i) {
    call.transfers[phase][peers[i]] = posted[i];
    if (phase > 0) job->wake(messages[i].first);
  }
}

std::vector<const Transfer*> ThreadGroup::transfers_of(const ThreadOperation& operation, size_t index,
                                                       size_t phase, Half half) {
  std::vector<const Transfer*> out;
  for (size_t peer = 0; peer < operation.calls.size(); ++peer) {
    if (peer == index || !operation.calls[peer]) continue;
    const auto &to = operation.calls[index]->transfers, &from = operation.calls[peer]->transfers;
    if (to[phase][peer] && half == Half::kBoth) out.push_back(to[phase][peer].get());
    if (from.size() > phase && from[phase][index]) out.push_back(from[phase][index].get());
  }
  return out;
}

void ThreadGroup::finish_phase(ThreadJob::Lock& lock, const ThreadOperation& operation, size_t index) {
  const ThreadCall& call = *operation.calls[index];
  const int32_t rank = world_ranks[operation.members[index]];
  const size_t phase = call.transfers.size() - 1;
  const auto missing = [&] {
    return select(operation, [&](const ThreadCall* theirs, int32_t) {
      return theirs->transfers.size() <= phase && theirs->phases[phase][index] != kNoMessage;
    });
  };
  job->block(
      lock, rank, call.name, [&] { return missing().empty(); }, missing);
  job->wait_for(lock, rank, call.name, transfers_of(operation, index, phase));
}

void ThreadGroup::check_pair(int32_t sender, const ThreadCall& sends, int32_t receiver,
                             const ThreadCall& receives) const {
  for (size_t part = 0; part < sends.parts.size(); ++part) {
    const int64_t sent = sends.send_bytes[part * size() + receiver];
    const int64_t expected = receives.receive_bytes[part * size() + sender];
    if (sent != expected) {
      throw PeerError(
          size_message(part, sends.name, world_ranks[sender], sent, world_ranks[receiver], expected));
    }
  }
}

void ThreadGroup::copy_pair(int32_t sender, const ThreadCall& sends, int32_t receiver,
                            const ThreadCall& receives) const {
  for (size_t part = 0; part < sends.parts.size(); ++part) {
    const PeerBytes* from = find_peer(sends.parts[part].sends, receiver);
    const PeerBytes* to = find_peer(receives.parts[part].receives, sender);
    if (!from || !to || from->bytes == 0) continue;
    std::memmove(static_cast<char*>(receives.parts[part].recv) + to->offset,
                 static_cast<const char*>(sends.parts[part].send) + from->offset, from->bytes);
  }
}

void ThreadGroup::copy_with_earlier(ThreadJob::Lock& lock, ThreadOperation& operation, int32_t rank) {
  ThreadCall& mine = *operation.calls[rank];
  const std::vector<std::shared_ptr<ThreadCall>> calls = operation.calls;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (!calls[peer]) continue;
    check_pair(rank, mine, peer, *calls[peer]);
    check_pair(peer, *calls[peer], rank, mine);
  }
  for (int32_t step = 0; step < size(); ++step) {
    const int32_t peer = (rank + step) % size();
    if (!calls[peer] || !mine.open[peer] || calls[peer]->given_up) continue;
    ThreadCall& theirs = *calls[peer];
    ++theirs.users;
    lock.unlock();
    copy_pair(rank, mine, peer, theirs);
    if (peer != rank) copy_pair(peer, theirs, rank, mine);
    lock.lock();
    --theirs.users;
    close_pair(mine, peer, world_ranks[peer]);
    close_pair(theirs, rank, world_ranks[rank]);
    job->wake(world_ranks[peer]);
  }
}

PendingEnd ThreadGroup::end_of_exchange(const ThreadOperation& operation, int32_t rank, Half half) const {
  const ThreadCall& call = *operation.calls[rank];
  if (!job->has_links()) return half == Half::kBoth ? call.copied : call.came;
  PendingEnd end;
  for (const Transfer* transfer : transfers_of(operation, rank, 0, half)) {
    const double time = job->end_of(world_ranks[rank], {transfer});
    if (time >= end.time) end = {time, transfer->to == world_ranks[rank] ? transfer->from : transfer->to};
  }
  return end;
}

bool ThreadGroup::is_lost(const ThreadOperation& operation, const ThreadCall& call, Half half) {
  for (size_t peer = 0; peer < operation.calls.size(); ++peer) {
    if (call.is_open(peer, half) && operation.calls[peer] && operation.calls[peer]->dropped) return true;
  }
  return false;
}

void ThreadGroup::wait_for_exchange(ThreadJob::Lock& lock, const ThreadOperation& operation, int32_t rank,
                                    Half half) {
  const std::shared_ptr<ThreadCall> call = operation.calls[rank];
  const auto open = [&](const ThreadCall*, int32_t peer) {
    return call->is_open(static_cast<size_t>(peer), half);
  };
  job->block(
      lock, world_ranks[rank], call->name,
      [&] { return call->open_peers(half) == 0 || is_lost(operation, *call, half); },
      [&] { return select(operation, open); });
  if (call->open_peers(half) == 0) {
    if (job->has_links())
      job->wait_for(lock, world_ranks[rank], call->name, transfers_of(operation, rank, 0, half));
    return;
  }
  const auto lost = [&](const ThreadCall* theirs, int32_t peer) {
    return open(theirs, peer) && theirs && theirs->dropped;
  };
  job->check_losses(world_ranks[rank], call->name, select(operation, lost));
  throw PeerError(format("rank {} waited in {} for {}, which gave it up", world_ranks[rank], call->name,
                         rank_list(select(operation, lost))));
}

template <typename Test>
void ThreadGroup::wait_for_members(ThreadJob::Lock& lock, const ThreadOperation& operation, int32_t rank,
                                   const ThreadCall& call, Test test) {
  const auto missing = [&] {
    return select(operation, [&](const ThreadCall* theirs, int32_t) { return !test(theirs); });
  };
  // Those that gave up waited for somebody themselves: they are to blame only when nobody else is missing.
  const auto to_blame = [&] {
    const auto never_gave_up = [&](const ThreadCall* theirs, int32_t) {
      return !test(theirs) && !(theirs && theirs->given_up);
    };
    const std::vector<int32_t> out = select(operation, never_gave_up);
    return out.empty() ? missing() : out;
  };
  job->block(
      lock, world_ranks[rank], call.name, [&] { return missing().empty(); }, to_blame);
}

void ThreadGroup::run(int32_t rank, Key key, ThreadCall details,
                      const std::function<void(ThreadOperation&)>& work) {
  const auto call = std::make_shared<ThreadCall>(std::move(details));
  ThreadJob::Lock lock = job->lock();
  const std::shared_ptr<ThreadOperation> operation = enter(rank, key, call);
  const size_t index =
      std::find(operation->members.begin(), operation->members.end(), rank) - operation->members.begin();
  if (!call->phases.empty()) begin_phase(*operation, index);
  Guard guard{[&] { give_up(lock, *operation, rank, *call); }};
  wait_for_members(lock, *operation, rank, *call,
                   [](const ThreadCall* theirs) { return theirs && !theirs->given_up; });
  for (const auto& theirs : operation->calls) ++theirs->users;
  lock.unlock();
  std::exception_ptr error;
  try {
    work(*operation);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  for (size_t i = 0; i < operation->calls.size(); ++i) {
    if (--operation->calls[i]->users == 0) job->wake(world_ranks[operation->members[i]]);
  }
  if (error) std::rethrow_exception(error);
  call->finished = true;
  if (++operation->finished == static_cast<int32_t>(operation->members.size())) wake_members(*operation);
  wait_for_members(lock, *operation, rank, *call, [](const ThreadCall* theirs) { return theirs->finished; });
  guard.armed = false;
  for (size_t phase = 0; phase < call->phases.size(); ++phase) {
    if (phase > 0) begin_phase(*operation, index);
    finish_phase(lock, *operation, index);
  }
}

void ThreadGroup::give_up(ThreadJob::Lock& lock, const ThreadOperation& operation, int32_t rank,
                          ThreadCall& call) {
  call.given_up = true;
  call.dropped = std::uncaught_exceptions() == 0;
  wake_members(operation);
  job->settle(lock, world_ranks[rank], [&] { return call.users == 0; });
}

}  // namespace distca
