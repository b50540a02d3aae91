#include "comm/mpi.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/message.h"
#include "comm/mpi_engine.h"
#include "comm/reduce.h"
#include "comm/report.h"

namespace distca {
namespace {

constexpr int64_t kReduceBytes = int64_t{8} << 20;  // of each rank's data that an all-reduce moves at a time

/// A call that is under way until it goes out of scope.
class MpiPending : public Pending {
 public:
  MpiPending(std::shared_ptr<MpiEngine> engine, std::shared_ptr<MpiCall> call)
      : engine_(std::move(engine)), call_(std::move(call)) {
    engine_->enter(call_);
  }
  ~MpiPending() override { engine_->leave(*call_); }
  void wait() override { engine_->wait(*call_); }
  bool done() override { return engine_->done(*call_); }
  PendingEnd end() override { return call_->end; }
  void wait_arrived() override { engine_->wait_arrived(*call_); }
  bool arrived() override { return engine_->arrived(*call_); }
  PendingEnd arrival() override { return call_->arrival; }

 private:
  std::shared_ptr<MpiEngine> engine_;
  std::shared_ptr<MpiCall> call_;
};

class MpiFabric : public Fabric {
 public:
  /// `path` names the fabric: how it was split off the whole.
  MpiFabric(std::shared_ptr<MpiEngine> engine, std::string path, std::vector<int32_t> world_ranks,
            int32_t rank)
      : engine_(std::move(engine)),
        path_(std::move(path)),
        world_ranks_(std::move(world_ranks)),
        rank_(rank),
        sent_(world_ranks_.size()),
        received_(world_ranks_.size()) {}

  int32_t rank() const override { return rank_; }
  int32_t world_size() const override { return static_cast<int32_t>(world_ranks_.size()); }
  std::string kind() const override { return "mpi"; }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) override {
    check_parts(parts, world_size(), name);
    copy_own(parts, name);
    return begin(next_key(), name, exchange_text(name, parts.size()), parts, false);
  }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name) override {
    const std::string what = all_reduce_text(name, count, dtype, op);
    const int64_t size = bytes_of(dtype), most = kReduceBytes / size;
    int64_t at = 0;
    do {
      const int64_t block = std::min(most, count - at);
      all_reduce_block(static_cast<char*>(data) + at * size, block, dtype, op, name, what);
      at += block;
    } while (at < count);
  }

  void reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                      const std::string& name) override {
    const std::string what = reduce_scatter_text(name, count, dtype);
    const int64_t size = bytes_of(dtype), most = std::max<int64_t>(1, kReduceBytes / size / world_size());
    int64_t at = 0;
    do {
      const int64_t block = std::min(most, count - at);
      std::vector<PeerBytes> slices;
      for (int32_t peer = 0; peer < world_size(); ++peer) {
        slices.push_back({peer, (peer * count + at) * size, block * size});
      }
      reduce_slices(data, slices, static_cast<char*>(out) + at * size, block, dtype, ReduceOp::kSum, name,
                    what);
      at += block;
    } while (at < count);
  }

  void all_gather(const void* data, void* out, int64_t bytes, const std::string& name) override {
    ExchangePart part{data, out, {}, {}};
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      part.sends.push_back({peer, 0, bytes});
      part.receives.push_back({peer, peer * bytes, bytes});
    }
    complete(next_key(), name, all_gather_text(name, bytes), part);
  }

  void broadcast(void* data, int64_t bytes, int32_t root, const std::string& name) override {
    check_peer(root, world_size(), name);
    ExchangePart part{data, data, {}, {}};
    if (rank_ != root) part.receives.push_back({root, 0, bytes});
    for (int32_t peer = 0; peer < world_size() && rank_ == root; ++peer) {
      if (peer != root) part.sends.push_back({peer, 0, bytes});
    }
    complete(next_key(), name, broadcast_text(name, bytes, root), part);
  }

  void send(const void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    check_peer(peer, world_size(), name);
    DISTCA_CHECK(peer != rank_, "rank {} sends {} to itself", world_ranks_[rank_], name);
    message({path_, rank_, peer, sent_[peer]++}, name, bytes, peer, {data, nullptr, {{peer, 0, bytes}}, {}});
  }

  void receive(void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    check_peer(peer, world_size(), name);
    DISTCA_CHECK(peer != rank_, "rank {} receives {} from itself", world_ranks_[rank_], name);
    message({path_, peer, rank_, received_[peer]++}, name, bytes, peer,
            {nullptr, data, {}, {{peer, 0, bytes}}});
  }

  void barrier(const std::string& name) override { complete(next_key(), name, barrier_text(name), {}); }

  void abort(const std::string& message) override { engine_->fail(message, false); }

  std::unique_ptr<Fabric> split(int32_t color, const std::string& name) override {
    const MpiKey key = next_key();
    std::vector<int32_t> colors(world_size());
    ExchangePart part{&color, colors.data(), {}, {}};
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      part.sends.push_back({peer, 0, sizeof color});
      part.receives.push_back({peer, peer * static_cast<int64_t>(sizeof color), sizeof color});
    }
    complete(key, name, split_text(name), part);
    std::vector<int32_t> members;
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      if (colors[peer] == color) members.push_back(world_ranks_[peer]);
    }
    const auto own = std::find(members.begin(), members.end(), world_ranks_[rank_]);
    const int32_t rank = static_cast<int32_t>(own - members.begin());
    const std::string path = format("{}/{}:{}", path_, std::get<3>(key), color);
    return std::make_unique<MpiFabric>(engine_, path, std::move(members), rank);
  }

 private:
  MpiKey next_key() { return {path_, -1, -1, operations_++}; }

  std::unique_ptr<Pending> begin(MpiKey key, const std::string& name, std::string what,
                                 const std::vector<ExchangePart>& parts, bool everybody) {
    auto call = std::make_shared<MpiCall>();
    call->key = std::move(key);
    call->name = name;
    call->what = std::move(what);
    call->pairs = make_pairs(parts, world_ranks_, rank_, everybody);
    return std::make_unique<MpiPending>(engine_, std::move(call));
  }

  /// An operation in which all ranks wait for each other.
  void complete(MpiKey key, const std::string& name, std::string what, const ExchangePart& part) {
    copy_own({part}, name);
    begin(std::move(key), name, std::move(what), {part}, true)->wait();
  }

  void message(MpiKey key, const std::string& name, int64_t bytes, int32_t peer, const ExchangePart& part) {
    auto call = std::make_shared<MpiCall>();
    call->key = std::move(key);
    call->name = name;
    call->what = message_text(name, bytes);
    call->pairs = make_pairs({part}, world_ranks_, rank_, true);
    std::erase_if(call->pairs, [&](const MpiPair& pair) { return pair.peer != world_ranks_[peer]; });
    MpiPending(engine_, std::move(call)).wait();
  }

  /// What this rank sends to itself.
  void copy_own(const std::vector<ExchangePart>& parts, const std::string& name) const {
    const auto own = [&](const std::vector<PeerBytes>& list) {
      const auto at =
          std::find_if(list.begin(), list.end(), [&](const PeerBytes& p) { return p.peer == rank_; });
      return at == list.end() ? PeerBytes{rank_, 0, 0} : *at;
    };
    for (size_t part = 0; part < parts.size(); ++part) {
      const PeerBytes from = own(parts[part].sends), to = own(parts[part].receives);
      const int32_t rank = world_ranks_[rank_];
      if (from.bytes != to.bytes) throw Error(size_message(part, name, rank, from.bytes, rank, to.bytes));
      if (from.bytes == 0) continue;
      std::memmove(static_cast<char*>(parts[part].recv) + to.offset,
                   static_cast<const char*>(parts[part].send) + from.offset, from.bytes);
    }
  }

  /// Sends slice `slices[p]` of `data` to each rank p and reduces what comes, `count` elements from each, to
  /// `out`.
  void reduce_slices(const void* data, const std::vector<PeerBytes>& slices, void* out, int64_t count,
                     DType dtype, ReduceOp op, const std::string& name, const std::string& what) {
    const int64_t bytes = count * bytes_of(dtype);
    std::vector<char> received(bytes * world_size());
    ExchangePart part{data, received.data(), slices, {}};
    std::vector<const void*> sources;
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      part.receives.push_back({peer, peer * bytes, bytes});
      sources.push_back(received.data() + peer * bytes);
    }
    complete(next_key(), name, what, part);
    reduce_in_rank_order(sources, out, count, dtype, op);
  }

  void all_reduce_block(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name,
                        const std::string& what) {
    const int64_t size = bytes_of(dtype);
    std::vector<PeerBytes> slices;
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      const int64_t begin = slice_begin(count, world_size(), peer),
                    end = slice_begin(count, world_size(), peer + 1);
      slices.push_back({peer, begin * size, (end - begin) * size});
    }
    const PeerBytes& own = slices[rank_];
    reduce_slices(data, slices, static_cast<char*>(data) + own.offset, own.bytes / size, dtype, op, name,
                  what);
    ExchangePart part{data, data, {}, {}};
    for (int32_t peer = 0; peer < world_size(); ++peer) {
      if (peer == rank_) continue;
      part.sends.push_back({peer, own.offset, own.bytes});
      part.receives.push_back(slices[peer]);
    }
    complete(next_key(), name, what, part);
  }

  std::shared_ptr<MpiEngine> engine_;
  std::string path_;
  std::vector<int32_t> world_ranks_;
  int32_t rank_;
  int64_t operations_ = 0;
  std::vector<int64_t> sent_, received_;  // messages so far, by peer
};

}  // namespace

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name)) return true;
  }
  return false;
}

int run_mpi_rank(const FabricOptions& options, const std::function<void(Fabric&)>& body) {
  const auto engine = std::make_shared<MpiEngine>(options);
  try {
    std::vector<int32_t> world_ranks(engine->world_size());
    for (int32_t rank = 0; rank < engine->world_size(); ++rank) world_ranks[rank] = rank;
    MpiFabric fabric(engine, "", world_ranks, engine->rank());
    body(fabric);
    fabric.barrier("the end of the job");
  } catch (const InputError& error) {
    engine->end_job(error.what(), true);
  } catch (const std::exception& error) {
    engine->end_job(message_of(error), false);
  } catch (...) {
    engine->end_job("an exception that is no std::exception", false);
  }
  return 0;
}

}  // namespace distca
