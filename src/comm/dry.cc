#include "comm/dry.h"

namespace distca {
namespace {

class DryPending : public Pending {
 public:
  void wait() override {}
  bool done() override { return true; }
  PendingEnd end() override { return {}; }
};

class DryFabric : public Fabric {
 public:
  DryFabric(int32_t rank, int32_t world_size) : rank_(rank), world_size_(world_size) {}

  int32_t rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }
  std::string kind() const override { return "dry"; }

  std::unique_ptr<Pending> all_to_all(std::vector<ExchangePart>, std::string) override {
    return std::make_unique<DryPending>();
  }
  void all_reduce(void*, int64_t, DType, ReduceOp, const std::string&) override {}
  void reduce_scatter(const void*, void*, int64_t, DType, const std::string&) override {}
  void all_gather(const void*, void*, int64_t, const std::string&) override {}
  void broadcast(void*, int64_t, int32_t, const std::string&) override {}
  void send(const void*, int64_t, int32_t, const std::string&) override {}
  void receive(void*, int64_t, int32_t, const std::string&) override {}
  void barrier(const std::string&) override {}
  void abort(const std::string&) override {}
  std::unique_ptr<Fabric> split(int32_t, const std::string&) override {
    return make_dry_fabric(rank_, world_size_);
  }

 private:
  int32_t rank_, world_size_;
};

}  // namespace

std::unique_ptr<Fabric> make_dry_fabric(int32_t rank, int32_t world_size) {
  return std::make_unique<DryFabric>(rank, world_size);
}

}  // namespace distca
