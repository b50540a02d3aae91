#include "attend/attention_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "attend/baselines.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/thread_pool.h"
#include "kernel/cpu.h"
#include "kernel/peak.h"

namespace distca {
namespace {

/// Tasks with their tensors: standard normal inputs, and O, LSE and δ from one forward run.
class Work {
 public:
  Work(int64_t group, int64_t kv_heads, int64_t head_dim, std::vector<KernelTask> tasks)
      : shape_{group * kv_heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<double>(head_dim))},
        tasks_(std::move(tasks)) {
    for (const KernelTask& task : tasks_) {
      q_rows_ = std::max(q_rows_, task.q_row + task.q_len);
      kv_rows_ = std::max(kv_rows_, task.kv_row + task.kv_len);
    }
    const int64_t q_size = q_rows_ * shape_.heads * head_dim, kv_size = kv_rows_ * kv_heads * head_dim;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto [x, size] : {std::pair{&q_, q_size}, {&dout_, q_size}, {&k_, kv_size}, {&v_, kv_size}}) {
      x->resize(size);
      for (float& value : *x) value = normal(random);
    }
    for (auto [x, size] : {std::pair{&o_, q_size}, {&dq_, q_size}, {&dk_, kv_size}, {&dv_, kv_size}}) {
      x->resize(size);
    }
    lse_.resize(q_rows_ * shape_.heads);
    delta_.resize(q_rows_ * shape_.heads, 0.1f);
    ThreadPool pool(1);
    forward(pool);
  }

  void forward(ThreadPool& pool) {
    cpu_attention_forward<float>({shape_, tasks_, q_.data(), k_.data(), v_.data(), o_.data(), lse_.data()},
                                 pool);
  }

  void backward(ThreadPool& pool) {
    cpu_attention_backward<float>({shape_, tasks_, q_.data(), k_.data(), v_.data(), dout_.data(), lse_.data(),
                                   delta_.data(), q_rows_, kv_rows_, dq_.data(), dk_.data(), dv_.data()},
                                  pool);
  }

  double flops(bool backward) const {
    double pairs = 0;
    for (const KernelTask& task : tasks_) {
      for (int64_t i = 0; i < task.q_len; ++i) {
        const KeyRange keys = visible_keys(task, i, kNoWindow);
        pairs += static_cast<double>(keys.end - keys.begin);
      }
    }
    return pairs * static_cast<double>(shape_.heads * shape_.head_dim) * (backward ? 10 : 4);
  }

 private:
  AttentionShape shape_;
  std::vector<KernelTask> tasks_;
  int64_t q_rows_ = 0, kv_rows_ = 0;
  std::vector<float> q_, k_, v_, dout_, o_, lse_, delta_, dq_, dk_, dv_;
};

std::vector<KernelTask> shards(int64_t count, int64_t q_len, int64_t kv_len, bool full) {
  std::vector<KernelTask> tasks;
  for (int64_t i = 0; i < count; ++i) {
    KernelTask task{
        .q_row = i * q_len, .q_len = q_len, .q_pos = full ? kv_len : kv_len - q_len, .kv_len = kv_len};
    task.o_row = task.q_row;
    tasks.push_back(task);
  }
  return tasks;
}

std::vector<KernelTask> documents(const std::vector<int64_t>& lengths) {
  std::vector<KernelTask> tasks;
  int64_t row = 0;
  for (int64_t length : lengths) {
    tasks.push_back({.q_row = row, .q_len = length, .kv_row = row, .kv_len = length, .o_row = row});
    row += length;
  }
  return tasks;
}

/// 64 documents of 64 to 4,096 tokens, log-uniform to a power that makes long ones rare.
std::vector<int64_t> ragged_lengths() {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 64; ++i) {
    const double x = static_cast<double>(i * 37 % 64) / 63;
    lengths.push_back(static_cast<int64_t>(64 * std::pow(64.0, std::pow(x, 2.5))));
  }
  return lengths;
}

using Timer = double (*)();

double seconds_of(Timer timer, const std::function<void()>& body) {
  const double begin = timer();
  body();
  return timer() - begin;
}

/// How often a row is measured. In a quick run at least twice, and more only while that is soon done.
class Repeats {
 public:
  explicit Repeats(bool quick) : quick_(quick) {}

  bool more() {
    const double seconds = wall_seconds() - begin_;
    const bool enough = quick_ && ((done_ >= 3 && seconds > kSoon) || (done_ >= 2 && seconds > 2 * kSoon));
    return !enough && done_++ < (quick_ ? 5 : 15);
  }

 private:
  static constexpr double kSoon = 0.3;

  bool quick_;
  int done_ = 0;
  double begin_ = wall_seconds();
};

class Bench {
 public:
  Bench(const AttentionBenchOptions& options, const std::function<void(const BenchRow&)>& report)
      : options_(options), report_(report) {
    set_pytorch_threads(1);
    product_.run();
  }

  AttentionBench run() {
    for (const int64_t head_dim : {64, 128}) {
      for (const auto& [q, kv] : {std::pair<int64_t, int64_t>{512, 4096}, {128, 4096}})
        shard(q, kv, head_dim, 4);
      for (const int64_t length : {128, 1024}) whole(length, head_dim, 4);
    }
    if (!options_.quick) more_shapes();
    for (const int64_t head_dim : {64, 128}) {
      for (const int64_t length : {1024, 4096}) against_pytorch(format("doc{}", length), {length}, head_dim);
      if (head_dim == 64 || !options_.quick) against_pytorch("ragged64", ragged_lengths(), head_dim);
    }
    composed(32, 128, 4096, 64, 1);
    composed(64, 16, 4096, 64, 4);
    if (!options_.quick) composed(4096, 16, 256, 64, 4);
    for (const bool backward : {false, true}) two_threads(backward);
    AttentionBench& result = result_;
    DISTCA_CHECK_INPUT(!result.rows.empty(), "no shape's name contains '{}'", options_.only);
    if (products_.empty()) product_rate();
    result.target = kernel_target();
    result.blas = pytorch_blas();
    result.multiply_add = median(multiply_adds_);
    result.product = median(products_);
    result.product_share = median(shares_);
    return result;
  }

 private:
  static const char* direction(bool backward) { return backward ? "backward" : "forward"; }

  bool wanted(const std::string& name) const { return name.find(options_.only) != std::string::npos; }

  void add(const std::string& name, double value, const std::string& unit, const std::string& baseline,
           double ratio) {
    result_.rows.push_back({name, value, unit, baseline, ratio});
    report_(result_.rows.back());
  }

  /// Rate of at::mm now, with what the core could do beside it.
  double product_rate() {
    const double rate = product_.flops() / seconds_of(thread_cpu_seconds, [&] { product_.run(); });
    const double peak = multiply_add_rate();
    products_.push_back(rate / 1e9);
    multiply_adds_.push_back(peak / 1e9);
    shares_.push_back(rate / peak);
    return rate;
  }

  void against_product(const std::string& shape, Work& work, bool backward) {
    const std::string name = format("attention/{}/{}/t1", direction(backward), shape);
    if (!wanted(name)) return;
    std::vector<double> rates, ratios;
    for (Repeats repeat(options_.quick); repeat.more();) {
      const double product = product_rate();
      const double rate = work.flops(backward) / seconds_of(thread_cpu_seconds, [&] {
                            backward ? work.backward(one_) : work.forward(one_);
                          });
      rates.push_back(rate / 1e9);
      ratios.push_back(rate / product);
    }
    add(name, median(rates), "GFLOP/s", "at::mm", median(ratios));
  }

  void both_directions(const std::string& shape, Work work) {
    for (const bool backward : {false, true}) against_product(shape, work, backward);
  }

  bool none_wanted(const std::string& shape) const {
    return !wanted("attention/forward/" + shape + "/t1") && !wanted("attention/backward/" + shape + "/t1");
  }

  void shard(int64_t q, int64_t kv, int64_t head_dim, int64_t group) {
    const std::string shape = format("q{}/kv{}/d{}/gqa{}", q, kv, head_dim, group);
    if (none_wanted(shape)) return;
    const int64_t kv_heads = std::max<int64_t>(1, 4096 / (q * group));
    both_directions(shape, Work(group, kv_heads, head_dim, shards(1, q, kv, false)));
  }

  void whole(int64_t length, int64_t head_dim, int64_t group) {
    const std::string shape = format("doc{}/d{}/gqa{}", length, head_dim, group);
    if (none_wanted(shape)) return;
    const int64_t count = std::max<int64_t>(1, (1 << 21) / (length * length));
    both_directions(shape, Work(group, 2, head_dim, documents(std::vector<int64_t>(count, length))));
  }

  void more_shapes() {
    for (const int64_t head_dim : {64, 96, 128, 256}) {
      for (const int64_t group : {1, 4, 8}) {
        for (const int64_t q : {16, 128, 1024}) {
          for (const int64_t kv : {1024, 4096, 16384}) {
            const bool measured =
                head_dim % 64 == 0 && head_dim < 256 && group == 4 && q == 128 && kv == 4096;
            if (q <= kv && !measured) shard(q, kv, head_dim, group);
          }
        }
      }
      whole(4096, head_dim, 4);
    }
  }

  /// Whole documents with as many key/value heads as query heads, in one call, against PyTorch one by one.
  void against_pytorch(const std::string& what, const std::vector<int64_t>& lengths, int64_t head_dim) {
    const int64_t heads = lengths.size() == 1 && lengths[0] <= 1024 ? 8 : 2;
    const std::string shape = format("{}/d{}/gqa1", what, head_dim);
    if (none_wanted(shape)) return;
    Work work(1, heads, head_dim, documents(lengths));
    PytorchAttention peer(lengths, heads, head_dim);
    for (const bool backward : {false, true}) {
      const std::string name = format("attention/{}/{}/t1", direction(backward), shape);
      if (!wanted(name)) continue;
      peer.forward();
      std::vector<double> rates, ratios, products;
      for (Repeats repeat(options_.quick); repeat.more();) {
        const double product = product_rate();
        const double theirs =
            seconds_of(thread_cpu_seconds, [&] { backward ? peer.backward() : peer.forward(); });
        const double ours =
            seconds_of(thread_cpu_seconds, [&] { backward ? work.backward(one_) : work.forward(one_); });
        rates.push_back(work.flops(backward) / ours / 1e9);
        ratios.push_back(theirs / ours);
        products.push_back(work.flops(backward) / ours / product);
      }
      add(name, median(rates), "GFLOP/s", "pytorch", median(ratios));
      add(name, median(rates), "GFLOP/s", "at::mm", median(products));
    }
  }

  /// One call of many unmasked shards of the same keys against one shard of as many pairs over 4,096 keys.
  void composed(int64_t count, int64_t q, int64_t kv, int64_t head_dim, int64_t group) {
    const std::string shape = format("shards{}/q{}/kv{}/d{}/gqa{}", count, q, kv, head_dim, group);
    if (none_wanted(shape)) return;
    const int64_t kv_heads = group == 1 ? 2 : 1;
    Work many(group, kv_heads, head_dim, shards(count, q, kv, true));
    Work one(group, kv_heads, head_dim, shards(1, count * q * kv / 4096, 4096, true));
    for (const bool backward : {false, true}) {
      std::vector<double> rates, ratios;
      for (Repeats repeat(options_.quick); repeat.more();) {
        const auto seconds = [&](Work& work) {
          return seconds_of(thread_cpu_seconds, [&] { backward ? work.backward(one_) : work.forward(one_); });
        };
        const double single = seconds(one), all = seconds(many);
        rates.push_back(many.flops(backward) / all / 1e9);
        ratios.push_back(many.flops(backward) / all / (one.flops(backward) / single));
      }
      add(format("attention/{}/{}/t1", direction(backward), shape), median(rates), "GFLOP/s", "one shard",
          median(ratios));
    }
  }

  /// Speed of two threads over one, beside that of at::mm, in wall time.
  void two_threads(bool backward) {
    const std::string name = format("attention/{}/q1024/kv4096/d64/gqa1/t2", direction(backward));
    if (!wanted(name)) return;
    Work work(1, 8, 64, shards(1, 1024, 4096, false));
    MatrixProduct product(2048);
    ThreadPool two(2);
    std::vector<double> speedups, ratios;
    for (Repeats repeat(options_.quick); repeat.more();) {
      const auto product_seconds = [&](int threads) {
        set_pytorch_threads(threads);
        return seconds_of(wall_seconds, [&] { product.run(); });
      };
      const auto seconds = [&](ThreadPool& pool) {
        return seconds_of(wall_seconds, [&] { backward ? work.backward(pool) : work.forward(pool); });
      };
      const double product_speedup = product_seconds(1) / product_seconds(2);
      const double speedup = seconds(one_) / seconds(two);
      speedups.push_back(speedup);
      ratios.push_back(speedup / product_speedup);
    }
    set_pytorch_threads(1);
    add(name, median(speedups), "× one thread", "at::mm 2048", median(ratios));
  }

  const AttentionBenchOptions& options_;
  const std::function<void(const BenchRow&)>& report_;
  ThreadPool one_{1};
  MatrixProduct product_{1536};
  std::vector<double> products_, multiply_adds_, shares_;
  AttentionBench result_;
};

}  // namespace

AttentionBench bench_attention(const AttentionBenchOptions& options,
                               const std::function<void(const BenchRow&)>& report) {
  return Bench(options, report).run();
}

}  // namespace distca
