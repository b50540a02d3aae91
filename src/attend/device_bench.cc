#include "attend/device_bench.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "attend/device.h"
#include "base/check.h"
#include "base/median.h"

namespace distca {
namespace {

class DeviceBench {
 public:
  DeviceBench(at::Device device, const AttentionBenchOptions& options,
              const std::function<void(const BenchRow&)>& report, int64_t most_keys)
      : device_(device),
        options_(options),
        report_(report),
        most_keys_(most_keys),
        repeats_(options.quick ? 5 : 15),
        size_(device.is_cuda() ? 8192 : 1024) {
    const auto matrix = at::TensorOptions().dtype(measured_type(device)).device(device);
    a_ = at::randn({size_, size_}, matrix), b_ = at::randn({size_, size_}, matrix);
    for (int i = 0; i < 3; ++i) product_rate();  // clocks rise, workspaces are made
    products_.clear();
  }

  AttentionBench run() {
    for (const int64_t head_dim : {128, 64}) {
      if (head_dim == 64 && options_.quick) break;
      const AttentionShape shape{8, 2, head_dim, 1 / std::sqrt(static_cast<double>(head_dim))};
      for (const int64_t length : {4096, 16384, 65536}) documents(shape, length);
      for (const int64_t keys : {4096, 16384, 65536}) {
        for (const int64_t rows : {16, 32, 64, 128, 256, 512, 1024}) tasks(shape, rows, keys);
      }
    }
    DISTCA_CHECK_INPUT(!result_.rows.empty(), "no shape's name contains '{}'", options_.only);
    result_.product = median(products_);
    return result_;
  }

 private:
  /// GFLOP/s of at::mm now.
  double product_rate() {
    const double seconds = device_seconds(device_, [&] { at::mm(a_, b_); });
    products_.push_back(2 * std::pow(static_cast<double>(size_), 3) / seconds / 1e9);
    return products_.back();
  }

  double rate(PackedTasks& work, bool backward) {
    const double seconds = device_seconds(device_, [&] { backward ? work.backward() : work.forward(); });
    return work.flops(backward) / seconds / 1e9;
  }

  void measure(const AttentionShape& shape, const std::string& what, int64_t count, int64_t q, int64_t kv,
               int64_t document) {
    const std::string names[] = {
        format("attention/forward/{}/d{}/gqa{}", what, shape.head_dim, shape.heads / shape.kv_heads),
        format("attention/backward/{}/d{}/gqa{}", what, shape.head_dim, shape.heads / shape.kv_heads)};
    const auto wanted = [&](const std::string& name) {
      return name.find(options_.only) != std::string::npos;
    };
    if (!wanted(names[0]) && !wanted(names[1])) return;
    PackedTasks work(device_, shape, count, q, kv);
    std::optional<PackedTasks> peer;
    if (document > 0) peer.emplace(device_, shape, 1, document, document);
    for (const bool backward : {false, true}) {
      if (!wanted(names[backward])) continue;
      work.forward();
      if (peer) peer->forward();
      rate(work, backward);  // the first call of a shape chooses and loads its kernel
      if (peer) rate(*peer, backward);
      std::vector<double> rates, of_product, of_document;
      for (int i = 0; i < repeats_; ++i) {
        const double product = product_rate();
        if (peer) of_document.push_back(rate(*peer, backward));
        rates.push_back(rate(work, backward));
        of_product.push_back(rates.back() / product);
        if (peer) of_document.back() = rates.back() / of_document.back();
      }
      add({names[backward], median(rates), "GFLOP/s", "at::mm", median(of_product)});
      if (peer) add({names[backward], median(rates), "GFLOP/s", "one document", median(of_document)});
    }
  }

  void documents(const AttentionShape& shape, int64_t length) {
    if (length <= most_keys_) measure(shape, format("doc{}", length), 1, length, length, 0);
  }

  /// Beside a document of as many pairs.
  void tasks(const AttentionShape& shape, int64_t rows, int64_t keys) {
    const int64_t count = most_keys_ / keys;
    if (count == 0) return;
    const double pairs =
        static_cast<double>(count * rows) * (static_cast<double>(keys) - static_cast<double>(rows - 1) / 2);
    const auto document = static_cast<int64_t>(std::sqrt(2 * pairs)) / 128 * 128;
    measure(shape, format("tasks{}/q{}/kv{}", count, rows, keys), count, rows, keys,
            std::max<int64_t>(128, document));
  }

  void add(BenchRow row) {
    result_.rows.push_back(std::move(row));
    report_(result_.rows.back());
  }

  at::Device device_;
  const AttentionBenchOptions& options_;
  const std::function<void(const BenchRow&)>& report_;
  const int64_t most_keys_;
  const int repeats_;
  const int64_t size_;
  at::Tensor a_, b_;
  std::vector<double> products_;
  AttentionBench result_;
};

}  // namespace

AttentionBench bench_attention_on(at::Device device, const AttentionBenchOptions& options,
                                  const std::function<void(const BenchRow&)>& report, int64_t most_keys) {
  const c10::InferenceMode guard;
  return DeviceBench(device, options, report, most_keys).run();
}

}  // namespace distca
