#include "comm/threads.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/message.h"
#include "comm/reduce.h"
#include "comm/thread_group.h"

namespace distca {
namespace {

class ThreadExchange : public Pending {
 public:
  ThreadExchange(std::shared_ptr<ThreadGroup> group, std::shared_ptr<ThreadOperation> operation, int32_t rank)
      : group_(std::move(group)), operation_(std::move(operation)), rank_(rank) {}

  ~ThreadExchange() override {
    const FabricCall inside(*group_->job, world_rank());
    ThreadJob::Lock lock = group_->job->lock();
    if (call().open_count > 0) group_->give_up(lock, *operation_, rank_, call());
  }

  void wait() override { wait(Half::kBoth); }
  bool done() override { return done(Half::kBoth); }
  PendingEnd end() override { return end(Half::kBoth); }
  void wait_arrived() override { wait(Half::kComing); }
  bool arrived() override { return done(Half::kComing); }
  PendingEnd arrival() override { return end(Half::kComing); }

 private:
  void wait(Half half) {
    const FabricCall inside(*group_->job, world_rank());
    ThreadJob::Lock lock = group_->job->lock();
    group_->wait_for_exchange(lock, *operation_, rank_, half);
  }

  /// Under a virtual clock: whether the rank's clock has reached the end. Asking doesn't move it, but lets
  /// others compute.
  bool done(Half half) {
    const FabricCall inside(*group_->job, world_rank());
    ThreadJob::Lock lock = group_->job->lock();
    ThreadJob& job = *group_->job;
    const bool done = call().open_peers(half) == 0
                          ? is_over(job, half)
                          : job.failed() || ThreadGroup::is_lost(*operation_, call(), half);
    if (!done) job.give_core(world_rank());
    return done;
  }

  PendingEnd end(Half half) {
    const FabricCall inside(*group_->job, world_rank());
    const ThreadJob::Lock lock = group_->job->lock();
    return group_->end_of_exchange(*operation_, rank_, half);
  }

  bool is_over(ThreadJob& job, Half half) const {
    if (!job.has_links() || job.failed()) return true;
    return group_->end_of_exchange(*operation_, rank_, half).time <= job.now(world_rank());
  }
  int32_t world_rank() const { return group_->world_ranks[rank_]; }
  ThreadCall& call() { return *operation_->calls[rank_]; }

  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<ThreadOperation> operation_;
  int32_t rank_;
};

class ThreadFabric : public Fabric {
 public:
  ThreadFabric(std::shared_ptr<ThreadGroup> group, int32_t rank)
      : group_(std::move(group)), rank_(rank), sent_(group_->size()), received_(group_->size()) {}

  int32_t rank() const override { return rank_; }
  int32_t world_size() const override { return group_->size(); }
  std::string kind() const override { return "threads"; }
  double now() override { return group_->job->now(group_->world_ranks[rank_]); }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) override {
    check_parts(parts, world_size(), name);
    auto call = std::make_shared<ThreadCall>();
    call->what = exchange_text(name, parts.size());
    call->name = std::move(name);
    call->send_bytes = bytes_by_peer(parts, world_size(), true);
    call->receive_bytes = bytes_by_peer(parts, world_size(), false);
    call->parts = std::move(parts);
    call->open.resize(world_size());
    call->comes.resize(world_size());
    for (size_t i = 0; i < call->send_bytes.size(); ++i) {
      if (call->send_bytes[i] + call->receive_bytes[i] > 0) call->open[i % world_size()] = true;
      if (call->receive_bytes[i] > 0) call->comes[i % world_size()] = true;
    }
    for (char open : call->open) call->open_count += open;
    if (group_->job->has_links()) call->phases = {bytes_to_peers(call->send_bytes)};
    const FabricCall inside(*group_->job, group_->world_ranks[rank_]);
    std::unique_ptr<ThreadExchange> pending;  // outlives the lock, which giving it up takes
    ThreadJob::Lock lock = group_->job->lock();
    const std::shared_ptr<ThreadOperation> operation = group_->enter(rank_, next_key(), call);
    pending = std::make_unique<ThreadExchange>(group_, operation, rank_);
    if (!call->phases.empty()) group_->begin_phase(*operation, rank_);
    group_->copy_with_earlier(lock, *operation, rank_);
    return pending;
  }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name) override {
    const int64_t begin = slice_begin(count, world_size(), rank_);
    const int64_t end = slice_begin(count, world_size(), rank_ + 1);
    const std::string what = all_reduce_text(name, count, dtype, op);
    PhaseBytes slices_out = to_all(kNoMessage);
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      const int64_t slice =
          slice_begin(count, world_size(), peer + 1) - slice_begin(count, world_size(), peer);
      if (slice > 0) slices_out[peer] = slice * bytes_of(dtype);
    }
    const PhaseBytes sums_out = to_all(slices_out[rank_]);
    run(name, what, nullptr, data, {slices_out, sums_out}, [&](ThreadOperation& operation) {
      std::vector<char*> slices;
      for (const auto& call : operation.calls) {
        slices.push_back(static_cast<char*>(call->out) + begin * bytes_of(dtype));
      }
      const std::vector<const void*> sources(slices.begin(), slices.end());
      reduce_in_rank_order(sources, slices[rank_], end - begin, dtype, op);
      for (char* slice : slices) copy(slice, slices[rank_], (end - begin) * bytes_of(dtype));
    });
  }

  void reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                      const std::string& name) override {
    const std::string what = reduce_scatter_text(name, count, dtype);
    run(name, what, data, out, {to_all(count * bytes_of(dtype))}, [&](ThreadOperation& operation) {
      std::vector<const void*> sources;
      for (const auto& call : operation.calls) {
        sources.push_back(static_cast<const char*>(call->data) + rank_ * count * bytes_of(dtype));
      }
      reduce_in_rank_order(sources, out, count, dtype, ReduceOp::kSum);
    });
  }

  void all_gather(const void* data, void* out, int64_t bytes, const std::string& name) override {
    run(name, all_gather_text(name, bytes), data, out, {to_all(bytes)}, [&](ThreadOperation& operation) {
      for (int32_t peer = 0; peer < world_size(); ++peer) {
        copy(static_cast<char*>(out) + peer * bytes, operation.calls[peer]->data, bytes);
      }
    });
  }

  void broadcast(void* data, int64_t bytes, int32_t root, const std::string& name) override {
    check_peer(root, world_size(), name);
    run(name, broadcast_text(name, bytes, root), nullptr, data, {to_all(rank_ == root ? bytes : kNoMessage)},
        [&](ThreadOperation& operation) { copy(data, operation.calls[root]->out, bytes); });
  }

  void send(const void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    check_peer(peer, world_size(), name);
    DISTCA_CHECK(peer != rank_, "rank {} sends {} to itself", group_->world_ranks[rank_], name);
    ThreadCall call = make_call(name, message_text(name, bytes), data, nullptr);
    if (group_->job->has_links()) call.phases = {{kNoMessage, bytes}};
    const FabricCall inside(*group_->job, group_->world_ranks[rank_]);
    group_->run(rank_, {rank_, peer, sent_[peer]++}, std::move(call), [](ThreadOperation&) {});
  }

  void receive(void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    check_peer(peer, world_size(), name);
    DISTCA_CHECK(peer != rank_, "rank {} receives {} from itself", group_->world_ranks[rank_], name);
    ThreadCall call = make_call(name, message_text(name, bytes), nullptr, data);
    if (group_->job->has_links()) call.phases = {{kNoMessage, kNoMessage}};
    const FabricCall inside(*group_->job, group_->world_ranks[rank_]);
    group_->run(rank_, {peer, rank_, received_[peer]++}, std::move(call),
                [&](ThreadOperation& operation) { copy(data, operation.calls[0]->data, bytes); });
  }

  void barrier(const std::string& name) override {
    run(name, barrier_text(name), nullptr, nullptr, {to_all(0)}, [](ThreadOperation&) {});
  }

  void abort(const std::string& message) override {
    const FabricCall inside(*group_->job, group_->world_ranks[rank_]);
    ThreadJob::Lock lock = group_->job->lock();
    group_->job->fail(group_->world_ranks[rank_], message, false);
  }

  std::unique_ptr<Fabric> split(int32_t color, const std::string& name) override {
    ThreadCall call = make_call(name, split_text(name), nullptr, nullptr);
    call.color = color;
    const FabricCall inside(*group_->job, group_->world_ranks[rank_]);
    std::unique_ptr<Fabric> part;
    group_->run(rank_, next_key(), std::move(call), [&](ThreadOperation& operation) {
      std::vector<int32_t> members;
      int32_t rank = 0;
      for (int32_t peer = 0; peer < world_size(); ++peer) {
        if (operation.calls[peer]->color != color) continue;
        if (peer < rank_) ++rank;
        members.push_back(group_->world_ranks[peer]);
      }
      ThreadJob::Lock lock = group_->job->lock();
      std::shared_ptr<ThreadGroup>& group = operation.groups[color];
      if (!group) group = std::make_shared<ThreadGroup>(group_->job, members);
      part = std::make_unique<ThreadFabric>(group, rank);
    });
    return part;
  }

  Survivors survivors(const std::string& name) override {
    const std::shared_ptr<ThreadJob> job = group_->job;
    const int32_t world_rank = group_->world_ranks[rank_];
    const FabricCall inside(*job, world_rank);
    ThreadJob::Lock lock = job->lock();
    const auto [count, round] = job->agree(lock, world_rank, name);
    Survivors out;
    out.ranks = round->ranks;
    out.lost.assign(job->losses().begin(), job->losses().begin() + static_cast<std::ptrdiff_t>(count));
    if (round->some_ended) return out;
    std::shared_ptr<ThreadGroup> group = round->group.lock();
    if (!group) round->group = group = std::make_shared<ThreadGroup>(job, round->ranks);
    const auto at = std::find(round->ranks.begin(), round->ranks.end(), world_rank);
    out.fabric = std::make_unique<ThreadFabric>(group, static_cast<int32_t>(at - round->ranks.begin()));
    return out;
  }

 private:
  static void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
  }

  static ThreadCall make_call(const std::string& name, std::string what, const void* data, void* out) {
    ThreadCall call;
    call.name = name;
    call.what = std::move(what);
    call.data = data;
    call.out = out;
    return call;
  }

  ThreadGroup::Key next_key() { return {-1, -1, collectives_++}; }

  void run(const std::string& name, std::string what, const void* data, void* out,
           std::vector<PhaseBytes> phases, const std::function<void(ThreadOperation&)>& work) {
    ThreadCall call = make_call(name, std::move(what), data, out);
    if (group_->job->has_links()) call.phases = std::move(phases);
    const FabricCall inside(*group_->job, group_->world_ranks[rank_]);
    group_->run(rank_, next_key(), std::move(call), work);
  }

  PhaseBytes to_all(int64_t bytes) const { return PhaseBytes(world_size(), bytes); }

  /// What an exchange with those bytes by part and peer sends to each.
  PhaseBytes bytes_to_peers(const std::vector<int64_t>& by_part) const {
    PhaseBytes out = to_all(kNoMessage);
    for (size_t i = 0; i < by_part.size(); ++i) {
      int64_t& bytes = out[i % world_size()];
      if (by_part[i] > 0) bytes = std::max<int64_t>(bytes, 0) + by_part[i];
    }
    return out;
  }

  std::shared_ptr<ThreadGroup> group_;
  int32_t rank_;
  int64_t collectives_ = 0;
  std::vector<int64_t> sent_, received_;  // messages so far, by peer
};

void run_rank(const std::shared_ptr<ThreadGroup>& group, int32_t rank,
              const std::function<void(Fabric&)>& body) {
  ThreadJob& job = *group->job;
  const auto fail = [&](int32_t failed, const std::string& message, bool input_error) {
    const ThreadJob::Lock lock = job.lock();
    job.fail(failed, message, input_error);
  };
  const auto lose = [&](const std::string& message) {
    const ThreadJob::Lock lock = job.lock();
    job.lose(rank, message);
  };
  job.leave(rank);
  try {
    ThreadFabric fabric(group, rank);
    body(fabric);
  } catch (const InputError& error) {
    fail(rank, error.what(), true);
  } catch (const RankLost& error) {  // which nobody went on without
    fail(error.lost.rank, error.lost.failure, false);
  } catch (const PeerError& error) {
    fail(rank, error.what(), false);
  } catch (const std::exception& error) {
    lose(message_of(error));
  } catch (...) {
    lose("an exception that is no std::exception");
  }
  job.enter(rank);
  job.end(rank);
}

}  // namespace

void run_thread_ranks(int32_t ranks, const FabricOptions& options, const std::function<void(Fabric&)>& body) {
  run_thread_ranks(ranks, options, {}, body);
}

void run_thread_ranks(int32_t ranks, const FabricOptions& options, const std::vector<double>& speeds,
                      const std::function<void(Fabric&)>& body) {
  DISTCA_CHECK(ranks >= 1, "at least 1 rank is needed, not {}", ranks);
  const auto job = std::make_shared<ThreadJob>(ranks, options, speeds);
  std::vector<int32_t> world_ranks(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) world_ranks[rank] = rank;
  const auto group = std::make_shared<ThreadGroup>(job, world_ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back([&, rank] { run_rank(group, rank, body); });
    } catch (const std::system_error& error) {
      ThreadJob::Lock lock = job->lock();
      job->fail(rank, format("can't start its thread: {}", error.what()), false);
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  ThreadJob::Lock lock = job->lock();
  job->throw_failure();
}

}  // namespace distca
