#include "comm/testing.h"

#include <utility>

namespace distca::testing {
namespace {

class WatchedPending : public Pending {
 public:
  WatchedPending(std::unique_ptr<Pending> inner, BeforeOperation before, std::string name)
      : inner_(std::move(inner)), before_(std::move(before)), name_(std::move(name)) {}

  void wait() override {
    before_("wait for " + name_);
    inner_->wait();
  }
  bool done() override { return inner_->done(); }
  PendingEnd end() override { return inner_->end(); }
  void wait_arrived() override {
    before_("wait for what comes in " + name_);
    inner_->wait_arrived();
  }
  bool arrived() override { return inner_->arrived(); }
  PendingEnd arrival() override { return inner_->arrival(); }

 private:
  std::unique_ptr<Pending> inner_;
  BeforeOperation before_;
  std::string name_;
};

class WatchedFabric : public Fabric {
 public:
  WatchedFabric(Fabric& inner, BeforeOperation before) : inner_(inner), before_(std::move(before)) {}
  WatchedFabric(std::unique_ptr<Fabric> inner, BeforeOperation before)
      : owned_(std::move(inner)), inner_(*owned_), before_(std::move(before)) {}

  int32_t rank() const override { return inner_.rank(); }
  int32_t world_size() const override { return inner_.world_size(); }
  std::string kind() const override { return inner_.kind(); }
  double now() override { return inner_.now(); }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart> parts, std::string name) override {
    before_(name);
    return std::make_unique<WatchedPending>(inner_.all_to_all(std::move(parts), name), before_, name);
  }
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, const std::string& name) override {
    before_(name);
    inner_.all_reduce(data, count, dtype, op, name);
  }
  void reduce_scatter(const void* data, void* out, int64_t count, DType dtype,
                      const std::string& name) override {
    before_(name);
    inner_.reduce_scatter(data, out, count, dtype, name);
  }
  void all_gather(const void* data, void* out, int64_t bytes, const std::string& name) override {
    before_(name);
    inner_.all_gather(data, out, bytes, name);
  }
  void broadcast(void* data, int64_t bytes, int32_t root, const std::string& name) override {
    before_(name);
    inner_.broadcast(data, bytes, root, name);
  }
  void send(const void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    before_(name);
    inner_.send(data, bytes, peer, name);
  }
  void receive(void* data, int64_t bytes, int32_t peer, const std::string& name) override {
    before_(name);
    inner_.receive(data, bytes, peer, name);
  }
  void barrier(const std::string& name) override {
    before_(name);
    inner_.barrier(name);
  }
  void abort(const std::string& message) override { inner_.abort(message); }

  std::unique_ptr<Fabric> split(int32_t color, const std::string& name) override {
    before_(name);
    return std::make_unique<WatchedFabric>(inner_.split(color, name), before_);
  }
  Survivors survivors(const std::string& name) override {
    before_(name);
    Survivors out = inner_.survivors(name);
    if (out.fabric) out.fabric = std::make_unique<WatchedFabric>(std::move(out.fabric), before_);
    return out;
  }

 private:
  std::unique_ptr<Fabric> owned_;
  Fabric& inner_;
  BeforeOperation before_;
};

}  // namespace

std::unique_ptr<Fabric> watched_fabric(Fabric& fabric, BeforeOperation before) {
  return std::make_unique<WatchedFabric>(fabric, std::move(before));
}

}  // namespace distca::testing
