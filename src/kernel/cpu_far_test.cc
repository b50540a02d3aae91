// Rows whose elements are numbered beyond 2^31. Only the pages that hold something of their own take memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sanitizer.h"
#include "kernel/cpu.h"
#include "kernel/testing.h"

namespace distca {
namespace {

constexpr int64_t kDim = 64, kLength = 150;
constexpr int64_t kRow = (int64_t{1} << 31) / kDim + 12345;  // the first that is used

/// `rows` rows of floats whose pages before the last 64 MiB are all the same 2 MiB of memory.
class FarRows {
 public:
  explicit FarRows(int64_t rows, int64_t columns = kDim)
      : bytes_(static_cast<size_t>(rows * columns) * sizeof(float)) {
    memory_ =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) return;
    const int file = memfd_create("far_rows", 0);
    mapped_ = file >= 0 && ftruncate(file, kBlock) == 0;
    for (size_t at = 0; mapped_ && at + kOwn < bytes_; at += kBlock) {
      mapped_ = mmap(static_cast<char*>(memory_) + at, kBlock, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                     file, 0) != MAP_FAILED;
    }
    if (file >= 0) close(file);
  }
  ~FarRows() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  FarRows(const FarRows&) = delete;
  FarRows& operator=(const FarRows&) = delete;

  bool usable() const { return mapped_; }
  float* data() { return static_cast<float*>(memory_); }

 private:
  static constexpr size_t kBlock = size_t{2} << 20, kOwn = size_t{64} << 20;

  size_t bytes_;
  void* memory_ = MAP_FAILED;
  bool mapped_ = false;
};

/// A document's tensors at the first rows, and at rows from kRow on.
class CpuFar : public ::testing::Test {
 protected:
  void SetUp() override {
    for (FarRows* tensor : {&q_, &k_, &v_, &dout_, &o_, &lse_, &delta_, &dq_, &dk_, &dv_}) {
      if (!tensor->usable()) GTEST_SKIP() << "no address space for tensors of 8 GiB";
    }
    cpu_attention_forward(near_.forward(), pool_);
    testing::fill_delta(near_);
    put(near_.q, q_);
    put(near_.k, k_);
    put(near_.v, v_);
  }

  static void put(const std::vector<float>& from, FarRows& to) {
    const auto columns = static_cast<int64_t>(from.size()) / kLength;
    std::copy(from.begin(), from.end(), to.data() + kRow * columns);
  }

  static bool equal(const std::vector<float>& expected, FarRows& actual) {
    const auto columns = static_cast<int64_t>(expected.size()) / kLength;
    return std::equal(expected.begin(), expected.end(), actual.data() + kRow * columns);
  }

  static constexpr int64_t kRows = kRow + kLength;
  ThreadPool pool_{1};
  KernelTask task_{.q_row = kRow, .q_len = kLength, .kv_row = kRow, .kv_len = kLength, .o_row = kRow};
  testing::Problem<float> near_ =
      testing::make_problem<float>(testing::make_shape(1, 1, kDim), {testing::document(kLength)}, 9);
  FarRows q_{kRows}, k_{kRows}, v_{kRows}, dout_{kRows}, o_{kRows}, dq_{kRows}, dk_{kRows}, dv_{kRows};
  FarRows lse_{kRows, 1}, delta_{kRows, 1};
};

TEST_F(CpuFar, ForwardReadsAndWritesRowsBeyondTwoToThe31Elements) {
  cpu_attention_forward<float>(
      {near_.shape, std::span(&task_, 1), q_.data(), k_.data(), v_.data(), o_.data(), lse_.data()}, pool_);
  EXPECT_TRUE(equal(near_.o, o_));
  EXPECT_TRUE(equal(near_.lse, lse_));
}

TEST_F(CpuFar, BackwardReadsAndWritesRowsBeyondTwoToThe31Elements) {
  if (kSanitized) GTEST_SKIP() << "24 GiB of zeros take minutes under a sanitizer";
  cpu_attention_backward(near_.backward(), pool_);
  put(near_.dout, dout_);
  put(near_.lse, lse_);
  put(near_.delta, delta_);
  cpu_attention_backward<float>(
      {near_.shape, std::span(&task_, 1), q_.data(), k_.data(), v_.data(), dout_.data(), lse_.data(),
       delta_.data(), kRows, kRows, dq_.data(), dk_.data(), dv_.data()},
      pool_);
  EXPECT_TRUE(equal(near_.dq, dq_));
  EXPECT_TRUE(equal(near_.dk, dk_));
  EXPECT_TRUE(equal(near_.dv, dv_));
  EXPECT_EQ(dq_.data()[kRow * kDim - 1], 0);
}

}  // namespace
}  // namespace distca
