#include "attend/attention_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "attend/device.h"
#include "attend/packed_tasks.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/thread_pool.h"
#include "comm/threads.h"
#include "kernel/cpu.h"
#include "kernel/peak.h"

namespace distca {
namespace {

/// One task and its tensors, of one key/value head: heads are computed one after the other, so that the time
/// of all is a multiple.
class Measured {
 public:
  Measured(const AttentionShape& shape, int64_t most_q, int64_t most_kv)
      : shape_(shape), kv_heads_(shape.kv_heads) {
    shape_.heads /= shape_.kv_heads;
    shape_.kv_heads = 1;
    const int64_t q_size = most_q * shape_.heads * shape_.head_dim, kv_size = most_kv * shape_.head_dim;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto [x, size] : {std::pair{&q_, q_size}, {&dout_, q_size}, {&k_, kv_size}, {&v_, kv_size}}) {
      x->resize(size);
      for (float& value : *x) value = normal(random);
    }
    for (auto* x : {&o_, &dq_}) x->resize(q_size);
    for (auto* x : {&dk_, &dv_}) x->resize(kv_size);
    lse_.resize(most_q * shape_.heads);
    delta_.resize(lse_.size(), 0.1f);
  }

  /// How often all tasks are measured, one after the other, and how long that may take.
  static int64_t passes(bool quick) { return quick ? 5 : 15; }
  static constexpr double kMostSeconds = 60;

  /// Seconds of a task of q rows and kv keys, times what the multiply-add loop does meanwhile.
  double operations(int64_t q, int64_t kv, bool backward) {
    KernelTask task{.q_len = q, .q_pos = kv - q, .kv_len = kv};
    if (kv < q) {
      task.kv_len = std::max<int64_t>(1, kv - (q - 1) / 2);
      task.q_pos = task.kv_len;
    }
    run(task, false);  // the LSE that backward reads
    const double before = multiply_add_rate();
    double seconds = 0;
    int64_t runs = 0;
    for (const double begin = thread_cpu_seconds(); seconds < kLeastSeconds; ++runs) {
      run(task, backward);
      seconds = thread_cpu_seconds() - begin;
    }
    // A loop that was held up says nothing of the task beside it.
    const double rate = std::max(before, multiply_add_rate());
    rates_.push_back(rate);
    return seconds / static_cast<double>(runs) * rate * static_cast<double>(kv_heads_);
  }

  double median_rate() const { return median(rates_); }

 private:
  static constexpr double kLeastSeconds = 2e-3;

  void run(const KernelTask& task, bool backward) {
    const std::span<const KernelTask> tasks(&task, 1);
    if (backward) {
      cpu_attention_backward<float>(
          {shape_, tasks, q_.data(), k_.data(), v_.data(), dout_.data(), lse_.data(), delta_.data(),
           task.q_len, task.kv_len, dq_.data(), dk_.data(), dv_.data()},
          pool_);
    } else {
      cpu_attention_forward<float>({shape_, tasks, q_.data(), k_.data(), v_.data(), o_.data(), lse_.data()},
                                   pool_);
    }
  }

  AttentionShape shape_;
  int64_t kv_heads_;
  ThreadPool pool_{1};
  std::vector<float> q_, k_, v_, dout_, o_, lse_, delta_, dq_, dk_, dv_;
  std::vector<double> rates_;
};

/// Tasks on a device that computes many things at once: so many together that it is full. Its clock is its
/// own, so that what Measured calls operations are seconds here.
class MeasuredOnDevice {
 public:
  MeasuredOnDevice(at::Device device, const AttentionShape& shape, int repeats)
      : device_(device), shape_(shape), repeats_(repeats) {}

  static int64_t passes(bool) { return 1; }
  static constexpr double kMostSeconds = 0;

  double operations(int64_t q, int64_t kv, bool backward) const {
    constexpr int64_t kFullPairs = int64_t{1} << 26;
    const int64_t count = std::max<int64_t>(1, kFullPairs / (q * kv));
    PackedTasks work(device_, shape_, count, q, kv);
    work.forward();
    const auto run = [&] { backward ? work.backward() : work.forward(); };
    run();
    std::vector<double> samples;
    for (int i = 0; i < repeats_; ++i) samples.push_back(device_seconds(device_, run));
    return median(samples) / static_cast<double>(count);
  }

  double median_rate() const { return 1; }

 private:
  at::Device device_;
  AttentionShape shape_;
  int repeats_;
};

std::vector<int64_t> powers(int64_t first, int64_t last) {
  std::vector<int64_t> values;
  for (; first <= last; first *= 2) values.push_back(first);
  return values;
}

/// Tasks off the grid: q a multiple of 128 rows, as tasks are cut, kv any number not below it.
std::vector<std::pair<int64_t, int64_t>> points_between(const AttentionTimes& grid, int64_t count,
                                                        uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(0, 1);
  const auto log_uniform = [&](int64_t low, int64_t high) {
    const double ratio = static_cast<double>(high) / static_cast<double>(low);
    return static_cast<int64_t>(static_cast<double>(low) * std::pow(ratio, unit(random)));
  };
  std::vector<std::pair<int64_t, int64_t>> points;
  while (static_cast<int64_t>(points.size()) < count) {
    const int64_t q = log_uniform(grid.q.front(), grid.q.back() + 127) / kTileRows * kTileRows;
    const int64_t kv = log_uniform(q, grid.kv.back());
    points.push_back({q, kv});
  }
  return points;
}

/// The grid without its seconds.
AttentionTimes empty_grid(const ProfileOptions& options) {
  const bool cuda = options.device.is_cuda();
  AttentionTimes grid;
  grid.q = powers(128, options.quick ? 1024 : cuda ? 65536 : 4096);
  grid.kv = powers(128, options.quick ? 4096 : cuda ? 262144 : 16384);
  return grid;
}

/// What each task takes, as Meter::operations() says: the least of several passes over all of them. On a core
/// whose other thread is another's, one that is busy for a second makes tasks a third slower than those
/// measured in the next: samples of a task have to lie far apart, and the quiet ones count.
template <typename Meter>
std::vector<double> least_operations(Meter& measured, const std::vector<std::pair<int64_t, int64_t>>& tasks,
                                     bool backward, bool quick, const std::function<void(double)>& progress) {
  constexpr int64_t kLeastPasses = 4;
  constexpr double kSettled = .97;
  std::vector<double> least(tasks.size(), std::numeric_limits<double>::infinity());
  const int64_t passes = Meter::passes(quick);
  const double begin = wall_seconds();
  for (int64_t pass = 0; pass < passes; ++pass) {
    double fell_to = 1;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const double now = measured.operations(tasks[i].first, tasks[i].second, backward);
      fell_to = std::min(fell_to, now / least[i]);
      least[i] = std::min(least[i], now);
      progress((static_cast<double>(pass) + static_cast<double>(i + 1) / static_cast<double>(tasks.size())) /
               static_cast<double>(passes));
    }
    const bool late = wall_seconds() - begin > Meter::kMostSeconds;
    if (pass + 1 >= kLeastPasses && (late || fell_to > kSettled)) break;
  }
  progress(1);
  return least;
}

template <typename Meter>
AttentionProfile profile_with(Meter measured, const AttentionShape& shape, const ProfileOptions& options,
                              const std::function<void(double)>& progress) {
  constexpr int64_t kPoints = 30;
  const AttentionTimes empty = empty_grid(options);
  const auto points = points_between(empty, kPoints, options.seed);
  std::vector<std::pair<int64_t, int64_t>> tasks;  // of the grid, then the points
  for (const int64_t q : empty.q) {
    for (const int64_t kv : empty.kv) tasks.push_back({q, kv});
  }
  tasks.insert(tasks.end(), points.begin(), points.end());

  AttentionProfile profile;
  std::vector<double> errors;
  for (const bool backward : {false, true}) {
    AttentionGrid grid{backward ? "backward" : "forward", shape, empty};
    const std::vector<double> operations =
        least_operations(measured, tasks, backward, options.quick,
                         [&](double part) { progress((part + (backward ? 1 : 0)) / 2); });
    const double rate = measured.median_rate();
    const double* next = operations.data();
    for (size_t q = 0; q < empty.q.size(); ++q) {
      std::vector<double>& row = grid.times.seconds.emplace_back();
      for (size_t kv = 0; kv < empty.kv.size(); ++kv) row.push_back(*next++ / rate);
    }
    const TaskCost cost(grid.times);
    for (const auto& [q, kv] : points) {
      const double predicted = static_cast<double>(cost(Task{0, {kv - q, kv}, {0, kv}, 0})) * 1e-12;
      errors.push_back(std::abs(predicted / (*next++ / rate) - 1));
    }
    profile.grids.push_back(std::move(grid));
  }
  std::sort(errors.begin(), errors.end());
  profile.fit = {static_cast<int64_t>(errors.size()), errors[errors.size() / 2],
                 errors[errors.size() * 9 / 10], errors.back()};
  return profile;
}

}  // namespace

AttentionProfile profile_attention(const AttentionShape& shape, const ProfileOptions& options,
                                   const std::function<void(double)>& progress) {
  shape.check();
  if (!options.device.is_cpu())
    return profile_with(MeasuredOnDevice(options.device, shape, options.quick ? 3 : 5), shape, options,
                        progress);
  const AttentionTimes grid = empty_grid(options);
  return profile_with(Measured(shape, grid.q.back(), grid.kv.back()), shape, options, progress);
}

LinkProfile profile_thread_link(const ProfileOptions& options) {
  const int64_t large = int64_t{options.quick ? 8 : 64} << 20;
  const int rounds = options.quick ? 50 : 200;
  LinkProfile link;
  run_thread_ranks(2, {}, [&](Fabric& fabric) {
    std::vector<char> out(large, 1), in(large);
    const int32_t peer = 1 - fabric.rank();
    const auto exchange_seconds = [&](int64_t bytes, int times) {
      std::vector<double> samples;
      for (int i = 0; i < times; ++i) {
        fabric.barrier("profile");
        const double begin = wall_seconds();
        fabric.all_to_all({{out.data(), in.data(), {{peer, 0, bytes}}, {{peer, 0, bytes}}}}, "profile")
            ->wait();
        samples.push_back(wall_seconds() - begin);
      }
      return median(samples);
    };
    const double latency = exchange_seconds(8, rounds), seconds = exchange_seconds(large, 7);
    if (fabric.rank() == 0) link = {latency, static_cast<double>(large) / std::max(1e-9, seconds - latency)};
  });
  return link;
}

}  // namespace distca
