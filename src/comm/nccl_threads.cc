#include "comm/nccl_threads.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "comm/reduce.h"

namespace distca {
namespace {

enum class Kind { kSend, kReceive, kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSplit };

struct Group;

/// One rank's end of a group; what an NcclCommunicator's handle points to.
struct Member {
  std::shared_ptr<Group> group;
  int32_t rank = 0;
  int64_t open = 0;  // calls that others haven't met yet
  NcclResult error = NcclResult::kSuccess;
};

struct Call {
  Kind kind{};
  Member* member = nullptr;
  const void* data = nullptr;
  void* out = nullptr;
  int64_t count = 0;  // elements, or bytes where the type doesn't matter
  int32_t peer = 0;   // or the root, or the color
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Stream stream;
  Event ready;  // on that stream
  NcclCommunicator* child = nullptr;
  int32_t key = 0;
};

struct Group {
  int32_t size = 0;
  std::vector<Member*> members;                                             // null: not there yet, or gone
  std::vector<std::deque<Call>> collectives;                                // not yet met, by rank
  std::map<std::pair<int32_t, int32_t>, std::deque<Call>> sends, receives;  // by source and destination
};

/// The calls of this thread since it began a group.
struct Grouped {
  bool on = false;
  std::vector<Call> calls;
};
thread_local Grouped grouped;

class NcclForThreads : public NcclApi {
 public:
  explicit NcclForThreads(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  NcclResult get_unique_id(std::string* id) override {
    *id = std::to_string(++identities_);
    return NcclResult::kSuccess;
  }

  NcclResult comm_init_rank(NcclCommunicator* communicator, int32_t ranks, const std::string& id,
                            int32_t rank) override {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Group>& group = meeting_[id];
    if (!group) group = make_group(ranks);
    if (group->size != ranks || rank < 0 || rank >= ranks || group->members[rank])
      return NcclResult::kInvalidArgument;
    communicator->handle = add_member(group, rank);
    const bool complete = !std::count(group->members.begin(), group->members.end(), nullptr);
    for (Member* member : group->members) {
      if (member) member->open = complete ? 0 : 1;
    }
    if (!complete) return NcclResult::kInProgress;
    meeting_.erase(id);
    return NcclResult::kSuccess;
  }

  NcclResult comm_split(NcclCommunicator parent, int32_t color, int32_t key,
                        NcclCommunicator* child) override {
    Call call = make_call(Kind::kSplit, parent, nullptr, nullptr, 0, color);
    call.child = child;
    call.key = key;
    return take(std::move(call));
  }

  NcclResult group_start() override {
    grouped.on = true;
    return NcclResult::kSuccess;
  }

  NcclResult group_end() override {
    grouped.on = false;
    return submit(std::exchange(grouped.calls, {}));
  }

  NcclResult send(const void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                  Stream stream) override {
    return take(make_call(Kind::kSend, communicator, data, nullptr, bytes, peer, stream));
  }
  NcclResult receive(void* data, int64_t bytes, int32_t peer, NcclCommunicator communicator,
                     Stream stream) override {
    return take(make_call(Kind::kReceive, communicator, nullptr, data, bytes, peer, stream));
  }
  NcclResult all_reduce(const void* data, void* out, int64_t count, DType dtype, ReduceOp op,
                        NcclCommunicator communicator, Stream stream) override {
    Call call = make_call(Kind::kAllReduce, communicator, data, out, count, 0, stream);
    call.dtype = dtype;
    call.op = op;
    return take(std::move(call));
  }
  NcclResult reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                            NcclCommunicator communicator, Stream stream) override {
    Call call = make_call(Kind::kReduceScatter, communicator, data, out, count, 0, stream);
    call.dtype = dtype;
    return take(std::move(call));
  }
  NcclResult all_gather(const void* data, void* out, int64_t bytes, NcclCommunicator communicator,
                        Stream stream) override {
    return take(make_call(Kind::kAllGather, communicator, data, out, bytes, 0, stream));
  }
  NcclResult broadcast(void* data, int64_t bytes, int32_t root, NcclCommunicator communicator,
                       Stream stream) override {
    return take(make_call(Kind::kBroadcast, communicator, data, data, bytes, root, stream));
  }

  NcclResult async_error(NcclCommunicator communicator) override {
    const std::lock_guard lock(mutex_);
    const Member& member = *member_of(communicator);
    if (member.error != NcclResult::kSuccess) return member.error;
    return member.open > 0 ? NcclResult::kInProgress : NcclResult::kSuccess;
  }
  std::string last_error(NcclCommunicator) override { return ""; }

  /// Others find out when they need this one: as with the real one's, when its connections close.
  NcclResult abort(NcclCommunicator communicator) override {
    remove(communicator, NcclResult::kRemoteError);
    return NcclResult::kSuccess;
  }
  NcclResult finalize(NcclCommunicator communicator) override { return async_error(communicator); }
  NcclResult destroy(NcclCommunicator communicator) override {
    remove(communicator, NcclResult::kSuccess);
    return NcclResult::kSuccess;
  }

 private:
  static Member* member_of(NcclCommunicator communicator) {
    return static_cast<Member*>(communicator.handle);
  }
  static Call make_call(Kind kind, NcclCommunicator communicator, const void* data, void* out, int64_t count,
                        int32_t peer, Stream stream = {}) {
    Call call;
    call.kind = kind;
    call.member = member_of(communicator);
    call.data = data;
    call.out = out;
    call.count = count;
    call.peer = peer;
    call.stream = stream;
    return call;
  }

  static std::shared_ptr<Group> make_group(int32_t size) {
    auto group = std::make_shared<Group>();
    group->size = size;
    group->members.resize(size);
    group->collectives.resize(size);
    return group;
  }
  Member* add_member(const std::shared_ptr<Group>& group, int32_t rank) {
    auto member = std::make_unique<Member>(Member{group, rank});
    group->members[rank] = member.get();
    return (members_[member.get()] = std::move(member)).get();
  }
  void remove(NcclCommunicator communicator, NcclResult for_others);

  NcclResult take(Call call) {
    if (!grouped.on) return submit({std::move(call)});
    grouped.calls.push_back(std::move(call));
    return NcclResult::kSuccess;
  }
  NcclResult submit(std::vector<Call> calls);
  void meet(Group& group);

  void copy_message(Call& from, Call& to);
  void run_collective(std::vector<Call>& calls);
  void reduce(std::vector<Call>& calls);
  void split(std::vector<Call>& calls);

  std::shared_ptr<Device> device_;
  std::atomic<int64_t> identities_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> meeting_;
  std::map<Member*, std::unique_ptr<Member>> members_;
};

NcclResult NcclForThreads::submit(std::vector<Call> calls) {
  if (calls.empty()) return NcclResult::kSuccess;
  const std::lock_guard lock(mutex_);
  for (Call& call : calls) {
    Member& member = *call.member;
    if (member.error != NcclResult::kSuccess) return member.error;
    Group& group = *member.group;
    ++member.open;
    if (call.kind != Kind::kSplit) call.ready = device_->record(call.stream);
    if (call.kind == Kind::kSend) {
      group.sends[{member.rank, call.peer}].push_back(call);
    } else if (call.kind == Kind::kReceive) {
      group.receives[{call.peer, member.rank}].push_back(call);
    } else {
      group.collectives[member.rank].push_back(call);
    }
  }
  meet(*calls[0].member->group);
  return calls[0].member->open > 0 ? NcclResult::kInProgress : calls[0].member->error;
}

void NcclForThreads::meet(Group& group) {
  for (auto& [pair, sends] : group.sends) {
    std::deque<Call>& receives = group.receives[pair];
    while (!sends.empty() && !receives.empty()) {
      copy_message(sends.front(), receives.front());
      sends.pop_front();
      receives.pop_front();
    }
  }
  const auto waits = [](const std::deque<Call>& calls) { return !calls.empty(); };
  while (std::all_of(group.collectives.begin(), group.collectives.end(), waits)) {
    std::vector<Call> calls;
    for (std::deque<Call>& queue : group.collectives) {
      calls.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    run_collective(calls);
    for (const Call& call : calls) --call.member->open;
  }
}

void NcclForThreads::copy_message(Call& from, Call& to) {
  --from.member->open;
  --to.member->open;
  if (from.count != to.count) {  // the real one writes where it shouldn't, or hangs
    from.member->error = to.member->error = NcclResult::kInvalidUsage;
    return;
  }
  device_->wait(to.stream, from.ready);
  device_->copy(to.out, from.data, to.count, to.stream);
  device_->wait(from.stream, device_->record(to.stream));
}

void NcclForThreads::run_collective(std::vector<Call>& calls) {
  const Call& first = calls[0];
  const bool match = std::all_of(calls.begin(), calls.end(), [&](const Call& call) {
    return call.kind == first.kind && call.count == first.count && call.dtype == first.dtype &&
           call.op == first.op && (call.kind == Kind::kSplit || call.peer == first.peer);
  });
  if (!match) {
    for (const Call& call : calls) call.member->error = NcclResult::kInvalidUsage;
    return;
  }
  if (first.kind == Kind::kSplit) return split(calls);
  // All on the first rank's stream, which all others wait for.
  const Stream stream = first.stream;
  for (const Call& call : calls) device_->wait(stream, call.ready);
  if (first.kind == Kind::kAllReduce || first.kind == Kind::kReduceScatter) reduce(calls);
  for (const Call& to : calls) {
    if (first.kind == Kind::kBroadcast && to.member->rank != first.peer)
      device_->copy(to.out, calls[first.peer].data, first.count, stream);
    if (first.kind != Kind::kAllGather) continue;
    for (const Call& from : calls)
      device_->copy(static_cast<char*>(to.out) + from.member->rank * first.count, from.data, first.count,
                    stream);
  }
  const Event end = device_->record(stream);
  for (const Call& call : calls) device_->wait(call.stream, end);
}

void NcclForThreads::reduce(std::vector<Call>& calls) {
  const Call& first = calls[0];
  const Stream stream = first.stream;
  const bool scatters = first.kind == Kind::kReduceScatter;
  const int64_t count = scatters ? first.count * static_cast<int64_t>(calls.size()) : first.count;
  const int64_t slice = first.count * bytes_of(first.dtype);
  void* sum = device_->allocate(count * bytes_of(first.dtype), stream);
  device_->copy(sum, first.data, count * bytes_of(first.dtype), stream);
  for (size_t rank = 1; rank < calls.size(); ++rank)
    device_->combine(sum, calls[rank].data, count, first.dtype, first.op, stream);
  for (const Call& call : calls) {
    const int64_t at = scatters ? call.member->rank * slice : 0;
    device_->copy(call.out, static_cast<const char*>(sum) + at, slice, stream);
  }
  device_->release(sum);
}

void NcclForThreads::split(std::vector<Call>& calls) {
  std::map<int32_t, std::vector<Call*>> parts;
  for (Call& call : calls) parts[call.peer].push_back(&call);
  for (auto& [color, part] : parts) {
    std::stable_sort(part.begin(), part.end(), [](const Call* a, const Call* b) { return a->key < b->key; });
    const std::shared_ptr<Group> group = make_group(static_cast<int32_t>(part.size()));
    for (size_t rank = 0; rank < part.size(); ++rank)
      part[rank]->child->handle = add_member(group, static_cast<int32_t>(rank));
  }
}

void NcclForThreads::remove(NcclCommunicator communicator, NcclResult for_others) {
  const std::lock_guard lock(mutex_);
  Member* gone = member_of(communicator);
  const std::shared_ptr<Group> group = gone->group;
  const auto forget = [&](std::deque<Call>& calls) {
    std::erase_if(calls, [&](const Call& call) { return call.member == gone; });
  };
  for (auto& [pair, calls] : group->sends) forget(calls);
  for (auto& [pair, calls] : group->receives) forget(calls);
  for (std::deque<Call>& calls : group->collectives) forget(calls);
  group->members[gone->rank] = nullptr;
  for (Member* member : group->members) {
    if (member && member->error == NcclResult::kSuccess) member->error = for_others;
  }
  members_.erase(gone);
}

}  // namespace

std::shared_ptr<NcclApi> make_nccl_for_threads(std::shared_ptr<Device> device) {
  return std::make_shared<NcclForThreads>(std::move(device));
}

}  // namespace distca
