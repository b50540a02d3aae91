// What every fabric must do, as functions over a Fabric that all its ranks call: the tests of each kind run
// them. Expected values are computed on every rank from the seed alone.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "comm/fabric.h"

namespace distca::suite {

/// The byte at `at` of what rank a sends to b in part `part`.
inline uint8_t payload(uint64_t seed, int64_t part, int32_t a, int32_t b, int64_t at) {
  uint64_t x = seed + 0x9e3779b97f4a7c15 * (part + 1) + 0xbf58476d1ce4e5b9 * (a + 1) +
               0x94d049bb133111eb * (b + 1) + 0xd6e8feb86659fd93 * (at + 1);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return static_cast<uint8_t>(x >> 56);
}

/// One exchange of random sizes, with absent peers, empty segments, messages to oneself and gaps between.
struct RandomExchange {
  int32_t rank, ranks;
  uint64_t seed;
  std::vector<std::vector<uint8_t>> send, recv;
  std::vector<ExchangePart> parts;

  RandomExchange(int32_t rank, int32_t ranks, uint64_t seed) : rank(rank), ranks(ranks), seed(seed) {
    std::mt19937_64 random(seed);
    const int64_t count = random() % 4;
    const int64_t largest = int64_t{1} << (random() % 18);
    parts.resize(count);
    send.resize(count);
    recv.resize(count);
    for (int64_t part = 0; part < count; ++part) {
      for (int32_t a = 0; a < ranks; ++a) {
        for (int32_t b = 0; b < ranks; ++b) {
          const int64_t kind = random() % 4, bytes = kind < 2 ? random() % largest : 0;
          const int64_t gap_a = random() % 3, gap_b = random() % 3;
          if (kind == 3) continue;
          if (a == rank) {
            parts[part].sends.push_back({b, static_cast<int64_t>(send[part].size()) + gap_a, bytes});
            send[part].resize(send[part].size() + gap_a, 0xEE);
            for (int64_t i = 0; i < bytes; ++i) send[part].push_back(payload(seed, part, a, b, i));
          }
          if (b == rank) {
            parts[part].receives.push_back({a, static_cast<int64_t>(recv[part].size()) + gap_b, bytes});
            recv[part].resize(recv[part].size() + gap_b + bytes, 0xDD);
          }
        }
      }
      recv[part].resize(recv[part].size() + 8, 0xDD);
      parts[part].send = send[part].data();
      parts[part].recv = recv[part].data();
      std::reverse(parts[part].receives.begin(), parts[part].receives.end());
    }
  }

  std::unique_ptr<Pending> start(Fabric& fabric) const {
    return fabric.all_to_all(parts, "exchange " + std::to_string(seed));
  }

  void check() const {
    for (size_t part = 0; part < parts.size(); ++part) {
      std::vector<uint8_t> expected(recv[part].size(), 0xDD);
      for (const PeerBytes& from : parts[part].receives) {
        for (int64_t i = 0; i < from.bytes; ++i)
          expected[from.offset + i] = payload(seed, part, from.peer, rank, i);
      }
      EXPECT_EQ(recv[part], expected) << "part " << part << " on rank " << rank << ", seed " << seed;
    }
  }
};

/// Several exchanges at once, waited for in another order than they were started in.
inline void check_exchanges(Fabric& fabric, uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  std::mt19937_64 own(seed + 1 + fabric.rank());
  for (int round = 0; round < rounds; ++round) {
    const int64_t count = 1 + random() % 3;
    std::vector<RandomExchange> exchanges;
    for (int64_t i = 0; i < count; ++i) exchanges.emplace_back(fabric.rank(), fabric.world_size(), random());
    std::vector<std::unique_ptr<Pending>> pending;
    for (const RandomExchange& exchange : exchanges) pending.push_back(exchange.start(fabric));
    std::vector<int64_t> order(count);
    for (int64_t i = 0; i < count; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), own);
    for (int64_t i : order) {
      if (own() % 2 == 0) {
        pending[i]->wait_arrived();
        EXPECT_TRUE(pending[i]->arrived());
        exchanges[i].check();
      }
      pending[i]->wait();
      EXPECT_TRUE(pending[i]->done());
      exchanges[i].check();
    }
  }
}

/// An exchange arrives while its ranks do something else, before any of them waits for it.
inline void check_progress(Fabric& fabric) {
  const int32_t rank = fabric.rank(), ranks = fabric.world_size();
  const int64_t bytes = 500'000;
  std::vector<uint8_t> send(bytes, static_cast<uint8_t>(rank)), recv(bytes * ranks, 0xDD);
  std::vector<ExchangePart> parts = {{send.data(), recv.data(), {}, {}}};
  for (int32_t peer = 0; peer < ranks; ++peer) {
    parts[0].sends.push_back({peer, 0, bytes});
    parts[0].receives.push_back({peer, peer * bytes, bytes});
  }
  const std::unique_ptr<Pending> pending = fabric.all_to_all(parts, "while computing");
  while (!pending->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int64_t i = 0; i < bytes * ranks; ++i) ASSERT_EQ(recv[i], i / bytes);
  fabric.barrier("all have seen it arrive");
  pending->wait();
  const PendingEnd end = pending->end();
  EXPECT_LE(end.time, fabric.now());
  const bool knows_peer = ranks > 1 && fabric.kind() != "nccl";
  EXPECT_GE(end.peer, knows_peer ? 0 : -1);
}

/// What comes doesn't wait for what goes: all send to the last rank, which calls once they have seen that
/// nothing more comes to them.
inline void check_arrivals(Fabric& fabric) {
  const int32_t rank = fabric.rank(), last = fabric.world_size() - 1;
  if (last == 0 || fabric.kind() == "nccl") return;  // NCCL's waits are for both
  const int64_t bytes = 300'000;
  std::vector<uint8_t> send(bytes, static_cast<uint8_t>(rank)), recv(bytes * last, 0xDD);
  std::vector<ExchangePart> parts = {{send.data(), recv.data(), {}, {}}};
  char word = 0;
  if (rank < last) {
    parts[0].sends.push_back({last, 0, bytes});
    const std::unique_ptr<Pending> pending = fabric.all_to_all(parts, "to the last rank");
    EXPECT_TRUE(pending->arrived());
    pending->wait_arrived();
    EXPECT_EQ(pending->arrival().peer, -1);
    fabric.send(&word, 1, last, "word that nothing more comes");
    pending->wait();
    EXPECT_GE(pending->end().peer, 0);
    return;
  }
  for (int32_t peer = 0; peer < last; ++peer) {
    fabric.receive(&word, 1, peer, "word that nothing more comes");
    parts[0].receives.push_back({peer, peer * bytes, bytes});
  }
  const std::unique_ptr<Pending> pending = fabric.all_to_all(parts, "to the last rank");
  pending->wait_arrived();
  EXPECT_GE(pending->arrival().peer, 0);
  EXPECT_LE(pending->arrival().time, fabric.now());
  for (int64_t i = 0; i < bytes * last; ++i) ASSERT_EQ(recv[i], i / bytes);
  pending->wait();
}

/// Values whose sum depends on the order in which they are added.
template <typename T>
std::vector<T> values(uint64_t seed, int32_t rank, int64_t count) {
  std::mt19937_64 random(seed * 1000 + rank);
  std::vector<T> out(count);
  for (T& value : out) {
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(random()) / 1024;
    } else {
      value = static_cast<T>(std::ldexp(static_cast<double>(random() % 2000001) - 1e6, random() % 30));
    }
  }
  return out;
}

template <typename T>
std::vector<T> reduced(uint64_t seed, int32_t ranks, int64_t count, ReduceOp op) {
  std::vector<T> out = values<T>(seed, 0, count);
  for (int32_t rank = 1; rank < ranks; ++rank) {
    const std::vector<T> next = values<T>(seed, rank, count);
    for (int64_t i = 0; i < count; ++i) {
      out[i] = op == ReduceOp::kSum ? static_cast<T>(out[i] + next[i]) : std::max(out[i], next[i]);
    }
  }
  return out;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
void check_reductions(Fabric& fabric, uint64_t seed) {
  const int32_t rank = fabric.rank(), ranks = fabric.world_size();
  for (int64_t count : {0, 1, 2, 3, 97, 5003}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      std::vector<T> data = values<T>(seed, rank, count);
      fabric.all_reduce(std::span<T>(data), op, "reduce");
      EXPECT_TRUE(same_bits(data, reduced<T>(seed, ranks, count, op)))
          << count << " values, dtype " << static_cast<int>(kDTypeOf<T>) << ", rank " << rank << ", seed "
          << seed;
    }
    const std::vector<T> whole = reduced<T>(seed, ranks, count * ranks, ReduceOp::kSum);
    const std::vector<T> mine = values<T>(seed, rank, count * ranks);
    std::vector<T> slice(count);
    fabric.reduce_scatter(mine.data(), slice.data(), count, kDTypeOf<T>, "scatter");
    EXPECT_TRUE(
        same_bits(slice, std::vector<T>(whole.begin() + rank * count, whole.begin() + (rank + 1) * count)))
        << count << " values a rank, rank " << rank << ", seed " << seed;
  }
}

inline void check_all_reductions(Fabric& fabric, uint64_t seed) {
  check_reductions<float>(fabric, seed);
  check_reductions<double>(fabric, seed + 1);
  check_reductions<int64_t>(fabric, seed + 2);
}

inline void check_special_values(Fabric& fabric) {
  const int32_t last = fabric.world_size() - 1;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const bool first = fabric.rank() == 0, end = fabric.rank() == last;
  std::vector<double> data = {first ? nan : 1.0, end ? nan : 1.0, -inf, end ? inf : -inf, -0.0};
  std::vector<double> sum = data;
  fabric.all_reduce(std::span<double>(data), ReduceOp::kMax, "max");
  EXPECT_TRUE(std::isnan(data[0]) && std::isnan(data[1]));
  EXPECT_EQ(data[2], -inf);
  EXPECT_EQ(data[3], inf);
  fabric.all_reduce(std::span<double>(sum), ReduceOp::kSum, "sum");
  EXPECT_TRUE(std::signbit(sum[4]))
      << "a sum of negative zeros begins with the first rank's value, not with 0";
}

inline std::vector<uint8_t> bytes_of_rank(uint64_t seed, int32_t rank, int64_t bytes) {
  std::vector<uint8_t> out(bytes);
  for (int64_t i = 0; i < bytes; ++i) out[i] = payload(seed, 0, rank, 0, i);
  return out;
}

inline void check_gather_and_broadcast(Fabric& fabric, uint64_t seed) {
  const int32_t rank = fabric.rank(), ranks = fabric.world_size();
  for (int64_t bytes : {0, 1, 7, 100003}) {
    std::vector<uint8_t> all(bytes * ranks), expected;
    fabric.all_gather(bytes_of_rank(seed, rank, bytes).data(), all.data(), bytes, "gather");
    for (int32_t peer = 0; peer < ranks; ++peer) {
      const std::vector<uint8_t> slice = bytes_of_rank(seed, peer, bytes);
      expected.insert(expected.end(), slice.begin(), slice.end());
    }
    EXPECT_EQ(all, expected) << bytes << " bytes a rank, rank " << rank;
    for (int32_t root = 0; root < ranks; ++root) {
      std::vector<uint8_t> data = bytes_of_rank(seed, rank, bytes);
      fabric.broadcast(data.data(), bytes, root, "broadcast");
      EXPECT_EQ(data, bytes_of_rank(seed, root, bytes)) << "from rank " << root << " on rank " << rank;
    }
  }
}

/// Each rank's messages go round a ring; a second one overtakes nothing.
inline void check_messages(Fabric& fabric, uint64_t seed) {
  const int32_t rank = fabric.rank(), ranks = fabric.world_size();
  if (ranks == 1) return;
  const int32_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (int64_t bytes : {0, 1, 300007}) {
    std::vector<uint8_t> one(bytes), two(bytes);
    const auto send = [&] {
      fabric.send(bytes_of_rank(seed, rank, bytes).data(), bytes, next, "one");
      fabric.send(bytes_of_rank(seed + 1, rank, bytes).data(), bytes, next, "two");
    };
    if (rank != 0) send();
    fabric.receive(one.data(), bytes, previous, "one");
    fabric.receive(two.data(), bytes, previous, "two");
    if (rank == 0) send();
    EXPECT_EQ(one, bytes_of_rank(seed, previous, bytes));
    EXPECT_EQ(two, bytes_of_rank(seed + 1, previous, bytes));
  }
}

/// Halves by parity, halves of those again, all in use at once with the whole.
inline void check_split(Fabric& fabric, uint64_t seed) {
  const int32_t rank = fabric.rank(), ranks = fabric.world_size();
  const std::unique_ptr<Fabric> parity = fabric.split(rank % 2, "parity");
  EXPECT_EQ(parity->world_size(), (ranks + 1 - rank % 2) / 2);
  EXPECT_EQ(parity->rank(), rank / 2);
  const std::unique_ptr<Fabric> alone = parity->split(parity->rank(), "alone");
  EXPECT_EQ(alone->world_size(), 1);
  const RandomExchange whole(rank, ranks, seed), half(parity->rank(), parity->world_size(), seed + rank % 2);
  const std::unique_ptr<Pending> first = whole.start(fabric), second = half.start(*parity);
  check_exchanges(*alone, seed, 2);
  check_all_reductions(*parity, seed);
  second->wait();
  first->wait();
  whole.check();
  half.check();
  EXPECT_EQ(alone->kind(), fabric.kind());
}

/// 2^31 + 2^26 + 4 KiB of address space over a few MiB of memory: what lies 4 MiB apart is the same.
/// (Recurring memory keeps the test small; that each message arrives whole shows in its pattern, whose length
/// divides that of the memory.)
class LargeBuffer {
 public:
  static constexpr int64_t kPeriod = int64_t{4} << 20,
                           kBytes = (int64_t{1} << 31) + (int64_t{1} << 26) + kPeriod;

  LargeBuffer() {
    const int file = memfd_create("large", 0);
    EXPECT_EQ(ftruncate(file, kPeriod), 0);
    data_ = static_cast<uint8_t*>(
        mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (int64_t at = 0; at < kBytes; at += kPeriod) {
      EXPECT_NE(mmap(data_ + at, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
                MAP_FAILED);
    }
    close(file);
  }
  ~LargeBuffer() { munmap(data_, kBytes); }
  LargeBuffer(const LargeBuffer&) = delete;
  uint8_t* data() { return data_; }

 private:
  uint8_t* data_;
};

/// A message longer than 2^31 bytes to the next rank, and a short one that lies beyond 2^31 bytes in both
/// buffers.
inline void check_large_exchange(Fabric& fabric) {
  const int32_t rank = fabric.rank(), ranks = fabric.world_size();
  const int32_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  LargeBuffer send, recv;
  const int64_t bytes = (int64_t{1} << 31) + 12345;
  for (int64_t i = 0; i < LargeBuffer::kPeriod; ++i) send.data()[i] = payload(1, 0, rank, 0, i);
  std::vector<ExchangePart> parts(1);
  parts[0] = {send.data(), recv.data(), {{next, 0, bytes}}, {{previous, 0, bytes}}};
  fabric.all_to_all(parts, "large")->wait();
  for (int64_t i = 0; i < LargeBuffer::kPeriod; ++i) {
    ASSERT_EQ(recv.data()[i], payload(1, 0, previous, 0, i)) << "at " << i << " on rank " << rank;
  }
  std::memset(recv.data(), 0, LargeBuffer::kPeriod);
  parts[0].sends = {{next, bytes, 100}};
  parts[0].receives = {{previous, bytes + 1000, 100}};
  fabric.all_to_all(parts, "far")->wait();
  for (int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(recv.data()[12345 + 1000 + i], payload(1, 0, previous, 0, 12345 + i));
  EXPECT_EQ(recv.data()[12345 + 999], 0);
  EXPECT_EQ(recv.data()[12345 + 1100], 0);
  fabric.barrier("large end");
}

inline void check_all(Fabric& fabric, uint64_t seed) {
  check_exchanges(fabric, seed, 20);
  check_progress(fabric);
  check_arrivals(fabric);
  check_all_reductions(fabric, seed);
  check_special_values(fabric);
  check_gather_and_broadcast(fabric, seed);
  check_messages(fabric, seed);
  check_split(fabric, seed);
  fabric.barrier("end");
}

}  // namespace distca::suite
