#include "comm/cuda/tcp_store.h"

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/check.h"
#include "base/clock.h"
#include "base/message.h"

namespace distca {
namespace {

class TcpStore : public Store {
 public:
  TcpStore(const LaunchedRank& launched, double timeout_s)
      : place_(format("{}:{}", launched.host, launched.port)),
        // Of what an earlier attempt left behind, nothing must be read.
        prefix_(format("distca/{}/", launched.attempt)) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(launched.port);
    options.isServer = !launched.is_served && launched.rank == 0;
    options.numWorkers = static_cast<size_t>(launched.world_size);
    options.waitWorkers = false;  // who doesn't come is named where ranks wait for it
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
    reach([&] { store_ = c10::make_intrusive<c10d::TCPStore>(launched.host, options); });
  }

  void set(const std::string& key, const std::string& value) override {
    reach([&] { store_->set(prefix_ + key, std::vector<uint8_t>(value.begin(), value.end())); });
  }

  std::optional<std::string> get(const std::string& key, double timeout_s) override {
    // PyTorch's own wait would keep other threads from the table meanwhile.
    const double last = wall_seconds() + timeout_s;
    for (;;) {
      std::optional<std::string> value;
      reach([&] {
        if (!store_->check({prefix_ + key})) return;
        const std::vector<uint8_t> bytes = store_->get(prefix_ + key);
        value.emplace(bytes.begin(), bytes.end());
      });
      if (value || wall_seconds() >= last) return value;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  int64_t add(const std::string& key, int64_t value) override {
    int64_t out = 0;
    reach([&] { out = store_->add(prefix_ + key, value); });
    return out;
  }

 private:
  template <typename Work>
  void reach(Work work) {
    try {
      work();
    } catch (const std::exception& error) {
      throw Error(format("can't reach {}, where the ranks meet: {}", place_, message_of(error)));
    }
  }

  const std::string place_, prefix_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const LaunchedRank& launched, double timeout_s) {
  return std::make_shared<TcpStore>(launched, timeout_s);
}

}  // namespace distca
