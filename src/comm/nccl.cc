#include "comm/nccl.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "base/message.h"
#include "comm/nccl_compare.h"
#include "comm/nccl_engine.h"
#include "comm/reduce.h"
#include "comm/report.h"

namespace distca {
namespace {

/// An operation as the fabric asks for it.
struct Request {
  std::string name, what;
  std::vector<int32_t> peers;  // of the job
  std::vector<NcclBuffer> buffers;
  /// Calls the library for the buffers, all of which are the device's by then. None: there is nothing to do.
  std::function<NcclResult(const std::vector<NcclBuffer>&)> issue;
  std::vector<ExchangePart> parts;  // of an exchange
};

bool is_error(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

/// Drops an operation that wasn't handed to the library.
class Entered {
 public:
  Entered(NcclEngine& engine, NcclOperation& operation) : engine_(engine), operation_(operation) {}
  ~Entered() {
    if (!operation_.issued) engine_.drop(operation_);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  NcclEngine& engine_;
  NcclOperation& operation_;
};

/// After the library has handed it to the device.
void queue(NcclEngine& engine, NcclOperation& operation) {
  operation.staging->fetch();
  engine.queue(operation, engine.device().record(operation.link->stream));
  if (operation.link->unsettled.get() == &operation) operation.link->unsettled.reset();
}

/// Returns once the library has handed the operation to the device.
void settle(NcclEngine& engine, NcclOperation& operation) {
  if (operation.queued) return;
  engine.wait_until(operation, [&] { return engine.is_call_over(*operation.link, operation); });
  queue(engine, operation);
}

/// Has what the thread queues next begin after the operation, and host memory hold what came.
void complete(NcclEngine& engine, NcclOperation& operation) {
  settle(engine, operation);
  engine.device().wait(engine.device().current_stream(), operation.end);
  if (operation.staging->empty()) return;
  engine.wait_until(operation, [&] { return engine.is_over(operation); });
  operation.staging->finish();
}

class NcclPending : public Pending {
 public:
  NcclPending(std::shared_ptr<NcclWatch> watch, std::shared_ptr<NcclOperation> operation)
      : watch_(std::move(watch)), engine_(watch_->engine()), operation_(std::move(operation)) {}

  ~NcclPending() override {
    if (waited_ || engine_.has_failed()) return;
    try {
      if (std::uncaught_exceptions() > 0 && !is_queued()) {
        // The job is about to end: nobody may move to or from the buffers any more.
        engine_.end_link(*operation_->link);
        return;
      }
      settle(engine_, *operation_);
      engine_.device().wait(engine_.device().current_stream(), operation_->end);
    } catch (const std::exception&) {  // what failed does so in the next call too
    }
  }

  void wait() override {
    if (waited_) return;
    engine_.check_running(operation_->name, operation_->peers);
    complete(engine_, *operation_);
    waited_ = true;
  }

  bool done() override {
    if (operation_->is_empty || engine_.has_failed()) return true;
    try {
      if (!is_queued() || !engine_.is_over(*operation_)) return false;
    } catch (const PeerError&) {  // as wait() will
      return true;
    }
    operation_->staging->finish();
    return true;
  }

  PendingEnd end() override {
    const bool over = operation_->queued && engine_.is_over(*operation_);
    return {over ? engine_.end_of(*operation_) : wall_seconds(), -1};
  }

 private:
  /// Whether the device has it, as far as that is known without waiting.
  bool is_queued() {
    if (operation_->queued) return true;
    if (!engine_.is_call_over(*operation_->link, *operation_)) return false;
    queue(engine_, *operation_);
    return true;
  }

  std::shared_ptr<NcclWatch> watch_;
  NcclEngine& engine_;
  std::shared_ptr<NcclOperation> operation_;
  bool waited_ = false;
};

class NcclFabric : public Fabric {
 public:
  NcclFabric(std::shared_ptr<NcclWatch> watch, std::shared_ptr<NcclLink> link)
      : watch_(std::move(watch)), engine_(watch_->engine()), link_(std::move(link)) {}

  ~NcclFabric() override {
    for (const auto& [peer, pair] : pairs_) release(pair);
    release(link_);
  }

  int32_t rank() const override { return link_->index; }
  int32_t world_size() const override { return static_cast<int32_t>(link_->members.size()); }
  std::string kind() const override { return "nccl"; }

  /// The first operation of the job: the ranks meet.
  void start() {
    const auto operation = make_operation(link_, "the start of the job", link_->peers());
    engine_.enter(operation);
    const Entered entered(engine_, *operation);
    connect(*link_, *operation);
    engine_.leave(*operation);
  }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) override;

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name) override {
    Request request = collective(name, all_reduce_text(name, count, dtype, op));
    request.buffers = {{data, count * bytes_of(dtype), true, true}};
    if (count > 0) {
      request.issue = [&](const std::vector<NcclBuffer>& at) {
        return library().all_reduce(at[0].pointer, at[0].pointer, count, dtype, op, link_->communicator,
                                    link_->stream);
      };
    }
    run(std::move(request));
  }

  void reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                      const std::string& name) override {
    Request request = collective(name, reduce_scatter_text(name, count, dtype));
    const int64_t bytes = count * bytes_of(dtype);
    request.buffers = {{const_cast<void*>(data), bytes * world_size(), true, false},
                       {out, bytes, false, true}};
    if (count > 0) {
      request.issue = [&](const std::vector<NcclBuffer>& at) {
        return library().reduce_scatter(at[0].pointer, at[1].pointer, count, dtype, link_->communicator,
                                        link_->stream);
      };
    }
    run(std::move(request));
  }

  void all_gather(const void* data, void* out, int64_t bytes, const std::string& name) override {
    gather(data, out, bytes, name, all_gather_text(name, bytes), false);
  }

  void broadcast(void* data, int64_t bytes, int32_t root, const std::string& name) override {
    check_peer(root, world_size(), name);
    Request request = collective(name, broadcast_text(name, bytes, root));
    request.buffers = {{data, bytes, root == rank(), root != rank()}};
    if (bytes > 0) {
      request.issue = [&](const std::vector<NcclBuffer>& at) {
        return library().broadcast(at[0].pointer, bytes, root, link_->communicator, link_->stream);
      };
    }
    run(std::move(request));
  }

  void send(const void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    check_peer(peer, world_size(), name);
    DISTCA_CHECK(peer != rank(), "rank {} sends {} to itself", world_rank(), name);
    message(const_cast<void*>(data), bytes, peer, name, true);
  }

  void receive(void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    check_peer(peer, world_size(), name);
    DISTCA_CHECK(peer != rank(), "rank {} receives {} from itself", world_rank(), name);
    message(data, bytes, peer, name, false);
  }

  void barrier(const std::string& name) override {
    int64_t nothing = 0;
    Request request = collective(name, barrier_text(name));
    request.buffers = {{&nothing, sizeof nothing, true, true, true}};
    request.issue = [&](const std::vector<NcclBuffer>& at) {
      return library().all_reduce(at[0].pointer, at[0].pointer, 1, DType::kInt64, ReduceOp::kSum,
                                  link_->communicator, link_->stream);
    };
    run(std::move(request));
  }

  void abort(const std::string& message) override { engine_.abort(message); }

  std::unique_ptr<Fabric> split(int32_t color, const std::string& name) override;

 private:
  int32_t world_rank() const { return link_->members[link_->index]; }
  NcclApi& library() { return engine_.library(); }
  void release(const std::shared_ptr<NcclLink>& link) {
    engine_.release(link);
    link->unsettled.reset();
  }

  Request collective(const std::string& name, std::string what) const {
    return {name, std::move(what), link_->peers(), {}, {}, {}};
  }

  static std::shared_ptr<NcclOperation> make_operation(std::shared_ptr<NcclLink> link, std::string name,
                                                       std::vector<int32_t> peers) {
    auto operation = std::make_shared<NcclOperation>();
    operation->name = std::move(name);
    operation->peers = std::move(peers);
    operation->link = std::move(link);
    return operation;
  }

  void gather(const void* data, void* out, int64_t bytes, const std::string& name, std::string what,
              bool is_host) {
    Request request = collective(name, std::move(what));
    request.buffers = {{const_cast<void*>(data), bytes, true, false, is_host},
                       {out, bytes * world_size(), false, true, is_host}};
    if (bytes > 0) {
      request.issue = [&](const std::vector<NcclBuffer>& at) {
        return library().all_gather(at[0].pointer, at[1].pointer, bytes, link_->communicator, link_->stream);
      };
    }
    run(std::move(request));
  }

  /// What goes to or comes from one peer, as one of an operation's buffers.
  struct Segment {
    size_t buffer = 0;
    int32_t peer = 0;
    bool sends = false;
  };
  struct Segments {
    std::vector<Segment> with_peers;
    std::vector<std::pair<size_t, size_t>> own;  // the buffers of what stays here, and of where it goes
  };
  Segments segments_of(const std::vector<ExchangePart>& parts, std::vector<NcclBuffer>& buffers) const;
  void check_own_bytes(const ExchangePart& part, size_t index, const std::string& name) const;

  void message(void* data, int64_t bytes, int32_t peer, const std::string& name, bool sends);
  const std::shared_ptr<NcclLink>& pair_with(int32_t peer);

  void run(Request request) { complete(engine_, *begin(link_, std::move(request))); }
  std::shared_ptr<NcclOperation> begin(const std::shared_ptr<NcclLink>& link, Request request);
  void connect(NcclLink& link, NcclOperation& operation);

  std::shared_ptr<NcclWatch> watch_;
  NcclEngine& engine_;
  std::shared_ptr<NcclLink> link_;
  std::map<int32_t, std::shared_ptr<NcclLink>> pairs_;  // for messages, by peer
};

std::shared_ptr<NcclOperation> NcclFabric::begin(const std::shared_ptr<NcclLink>& link, Request request) {
  const auto operation = make_operation(link, request.name, std::move(request.peers));
  engine_.enter(operation);
  const Entered entered(engine_, *operation);
  if (!link->connected) connect(*link, *operation);
  // A communicator takes one call at a time.
  if (const auto last = link->unsettled) settle(engine_, *last);
  if (engine_.job().options.check_calls) {
    compare_calls(engine_, *operation, request.what, request.parts);
  }
  Device& device = engine_.device();
  device.wait(link->stream, device.record(device.current_stream()));
  operation->staging = std::make_unique<NcclStaging>(engine_.job().device, link->stream);
  operation->staging->replace(request.buffers);
  operation->start = device.record(link->stream);
  operation->is_empty = request.buffers.empty();
  for (const NcclBuffer& buffer : request.buffers) {
    if (buffer.read && buffer.bytes > 0) device.reads(link->stream, buffer.pointer, buffer.bytes);
    if (buffer.written && buffer.bytes > 0) device.writes(link->stream, buffer.pointer, buffer.bytes);
  }
  const bool over =
      !request.issue || engine_.begin_call(*link, *operation, [&] { return request.issue(request.buffers); });
  engine_.set_issued(*operation);
  if (over) {
    queue(engine_, *operation);
  } else {
    link->unsettled = operation;
  }
  return operation;
}

void NcclFabric::connect(NcclLink& link, NcclOperation& operation) {
  const std::string key = "communicator " + link.path;
  std::optional<std::string> id;
  if (link.index == 0) {
    id.emplace();
    const NcclResult result = library().get_unique_id(&*id);
    DISTCA_CHECK(result == NcclResult::kSuccess, "NCCL reports '{}' in {}", nccl_text(result),
                 operation.name);
    engine_.store().set(key, *id);
  }
  engine_.wait_until(operation, [&] { return id || (id = engine_.store().get(key, 0)); });
  engine_.call(link, operation, [&] {
    return library().comm_init_rank(&link.communicator, static_cast<int32_t>(link.members.size()), *id,
                                    link.index);
  });
  const std::lock_guard lock(link.mutex);
  link.connected = true;
}

std::unique_ptr<Pending> NcclFabric::all_to_all(std::vector<ExchangePart> parts, std::string name) {
  check_parts(parts, world_size(), name);
  Request request{name, exchange_text(name, parts.size()), {}, {}, {}, {}};
  for (size_t part = 0; part < parts.size(); ++part) check_own_bytes(parts[part], part, name);
  const Segments segments = segments_of(parts, request.buffers);
  std::set<int32_t> peers;
  for (const Segment& segment : segments.with_peers) peers.insert(link_->members[segment.peer]);
  request.peers.assign(peers.begin(), peers.end());
  request.issue = [&](const std::vector<NcclBuffer>& at) {
    for (const auto& [from, to] : segments.own)
      engine_.device().copy(at[to].pointer, at[from].pointer, at[to].bytes, link_->stream);
    if (segments.with_peers.empty()) return NcclResult::kSuccess;
    NcclResult result = library().group_start();
    for (const auto& [index, peer, sends] : segments.with_peers) {
      if (is_error(result)) break;
      const NcclBuffer& buffer = at[index];
      result =
          sends ? library().send(buffer.pointer, buffer.bytes, peer, link_->communicator, link_->stream)
                : library().receive(buffer.pointer, buffer.bytes, peer, link_->communicator, link_->stream);
    }
    const NcclResult end = library().group_end();
    return is_error(result) ? result : end;
  };
  request.parts = std::move(parts);
  return std::make_unique<NcclPending>(watch_, begin(link_, std::move(request)));
}

NcclFabric::Segments NcclFabric::segments_of(const std::vector<ExchangePart>& parts,
                                             std::vector<NcclBuffer>& buffers) const {
  Segments out;
  for (const ExchangePart& part : parts) {
    size_t own = 0;
    for (const PeerBytes& to : part.sends) {
      if (to.bytes == 0) continue;
      if (to.peer == rank()) own = buffers.size();
      if (to.peer != rank()) out.with_peers.push_back({buffers.size(), to.peer, true});
      auto* send = static_cast<char*>(const_cast<void*>(part.send));
      buffers.push_back({send + to.offset, to.bytes, true, false});
    }
    for (const PeerBytes& from : part.receives) {
      if (from.bytes == 0) continue;
      if (from.peer == rank()) out.own.emplace_back(own, buffers.size());
      if (from.peer != rank()) out.with_peers.push_back({buffers.size(), from.peer, false});
      buffers.push_back({static_cast<char*>(part.recv) + from.offset, from.bytes, false, true});
    }
  }
  return out;
}

void NcclFabric::check_own_bytes(const ExchangePart& part, size_t index, const std::string& name) const {
  const auto own = [&](const std::vector<PeerBytes>& list) {
    int64_t bytes = 0;
    for (const PeerBytes& at : list) bytes += at.peer == rank() ? at.bytes : 0;
    return bytes;
  };
  const int64_t kept = own(part.sends), expected = own(part.receives);
  if (kept != expected) throw Error(size_message(index, name, world_rank(), kept, world_rank(), expected));
}

const std::shared_ptr<NcclLink>& NcclFabric::pair_with(int32_t peer) {
  std::shared_ptr<NcclLink>& pair = pairs_[peer];
  if (pair) return pair;
  pair = std::make_shared<NcclLink>();
  const int32_t first = std::min(peer, rank()), second = std::max(peer, rank());
  pair->path = format("{}/{}-{}", link_->path, first, second);
  pair->members = {link_->members[first], link_->members[second]};
  pair->index = rank() == first ? 0 : 1;
  pair->stream = engine_.device().make_stream("messages " + pair->path);
  engine_.add(pair);
  return pair;
}

void NcclFabric::message(void* data, int64_t bytes, int32_t peer, const std::string& name, bool sends) {
  const std::shared_ptr<NcclLink>& pair = pair_with(peer);
  Request request{name, message_text(name, bytes), pair->peers(), {}, {}, {}};
  request.buffers = {{data, bytes, sends, !sends}};
  if (bytes > 0) {
    request.issue = [&](const std::vector<NcclBuffer>& at) {
      const int32_t other = 1 - pair->index;
      return sends ? library().send(at[0].pointer, bytes, other, pair->communicator, pair->stream)
                   : library().receive(at[0].pointer, bytes, other, pair->communicator, pair->stream);
    };
  }
  complete(engine_, *begin(pair, std::move(request)));
}

std::unique_ptr<Fabric> NcclFabric::split(int32_t color, const std::string& name) {
  std::vector<int32_t> colors(world_size());
  gather(&color, colors.data(), sizeof color, name, split_text(name), true);
  const auto operation = make_operation(link_, name, link_->peers());
  engine_.enter(operation);
  const Entered entered(engine_, *operation);

  const auto part = std::make_shared<NcclLink>();
  for (int32_t peer = 0; peer < world_size(); ++peer) {
    if (colors[peer] != color) continue;
    if (peer < rank()) ++part->index;
    part->members.push_back(link_->members[peer]);
  }
  part->path = format("{}/{}:{}", link_->path, operation->number, color);
  part->stream = engine_.device().make_stream("exchange " + part->path);
  // NCCL's colors begin at 0.
  std::sort(colors.begin(), colors.end());
  const auto end = std::unique(colors.begin(), colors.end());
  const auto index = static_cast<int32_t>(std::lower_bound(colors.begin(), end, color) - colors.begin());
  link_->child = part;
  engine_.call(*link_, *operation,
               [&] { return library().comm_split(link_->communicator, index, rank(), &part->communicator); });
  link_->child.reset();
  engine_.add(part);
  engine_.call(*part, *operation, [&] { return library().async_error(part->communicator); });
  {
    const std::lock_guard lock(part->mutex);
    part->connected = true;
  }
  engine_.leave(*operation);
  return std::make_unique<NcclFabric>(watch_, part);
}

}  // namespace

std::unique_ptr<Fabric> make_nccl_fabric(const NcclJob& job) {
  DISTCA_CHECK(job.rank >= 0 && job.rank < job.world_size, "rank {} of {}", job.rank, job.world_size);
  const auto engine = std::make_shared<NcclEngine>(job);
  const auto link = std::make_shared<NcclLink>();
  link->members.resize(job.world_size);
  std::iota(link->members.begin(), link->members.end(), 0);
  link->index = job.rank;
  link->stream = job.device->make_stream("exchange");
  engine->add(link);
  auto fabric = std::make_unique<NcclFabric>(std::make_shared<NcclWatch>(engine), link);
  try {
    fabric->start();
  } catch (const std::exception& error) {
    engine->abort(message_of(error));
    throw;
  }
  return fabric;
}

}  // namespace distca
