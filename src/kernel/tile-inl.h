// Register tiles of the CPU kernel: small matrix products that live in vector registers, and exp2. Compiled
// once for each instruction set.
#if defined(DISTCA_KERNEL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DISTCA_KERNEL_TILE_INL_H_
#undef DISTCA_KERNEL_TILE_INL_H_
#else
#define DISTCA_KERNEL_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace distca::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Better targets have smaller numbers, and newer versions of Highway know some above AVX3.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
inline constexpr bool kManyRegisters = true;  // 32
#else
inline constexpr bool kManyRegisters = false;  // 16
#endif

/// Sizes of the tiles for elements of type E. Accumulators, one row of B and a broadcast of A fill the
/// registers.
template <typename E>
struct Tile {
  using D = hn::ScalableTag<E>;
  static constexpr int kLanes = hn::MaxLanes(D());
  static constexpr int kRows = kManyRegisters ? 8 : 4;          // keys, or columns of head_dim
  static constexpr int kVectors = 3;                            // of query lanes
  static constexpr int kOuterRows = 6;                          // keys, where the sum runs over query lanes
  static constexpr int kOuterVectors = kManyRegisters ? 4 : 2;  // of head_dim
};

/// Terms of a product between two calls of what is to be done beside it.
inline constexpr int64_t kBesideTerms = kManyRegisters ? 8 : 16;

/// acc[r][v] += Σ_t A(r, t) · b[t · b_step + v], t < n, as product() says: a loop of one term, whose 24
/// multiply-adds hide what the loop costs.
template <bool kPacked, int R, int NV, class D, class Beside, typename E = hn::TFromD<D>,
          class V = hn::Vec<D>>
HWY_INLINE void add_terms(D d, const E* HWY_RESTRICT a, int64_t a_row, const E* HWY_RESTRICT b,
                          int64_t b_step, int64_t n, V (&acc)[R][NV], Beside beside) {
  constexpr int kLanes = hn::MaxLanes(d);
  for (int64_t left = n; left > 0; left -= kBesideTerms) {
    beside();
    HWY_UNROLL(1)
    for (int64_t t = std::min(left, kBesideTerms); t > 0; --t) {
      V row[NV];
      HWY_UNROLL(16)
      for (int v = 0; v < NV; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) {
        const V x = hn::Set(d, kPacked ? a[r] : a[r * a_row]);
        HWY_UNROLL(16)
        for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(x, row[v], acc[r][v]);
      }
      a += kPacked ? R : 1;
      b += b_step;
    }
  }
}

/// Calls step(i) for i < N, each a constant.
template <int N, class Step>
HWY_INLINE void for_constants(Step step) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (step(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, N>());
}

/// Where a product reads A: R rows, or one row of columns of R.
template <bool kPacked, int R, typename E>
class LeftSide {
 public:
  HWY_INLINE LeftSide(const E* a, int64_t a_row) {
    for_constants<kPointers>([&](auto r) { rows_[r] = a + r * a_row; });
  }

  template <int r>
  HWY_INLINE E at(int64_t t) const {
    return kPacked ? rows_[0][t * R + r] : rows_[kPacked ? 0 : r][t];
  }

  HWY_INLINE void advance(int64_t terms) {
    for_constants<kPointers>([&](auto r) { rows_[r] += kPacked ? terms * R : terms; });
  }

  /// The compiler would work out the rows' addresses from one another again in each term.
  HWY_INLINE void keep_apart() {
    for_constants<kPointers>([&](auto r) { asm("" : "+r"(rows_[r])); });
  }

 private:
  static constexpr int kPointers = kPacked ? 1 : R;
  const E* rows_[kPointers];
};

/// acc[r][v] += A(r, t) · b[v].
template <bool kPacked, int R, int NV, class D, typename E = hn::TFromD<D>, class V = hn::Vec<D>>
HWY_INLINE void add_term(D d, const LeftSide<kPacked, R, E>& a, int64_t t, const E* b, V (&acc)[R][NV]) {
  constexpr int kLanes = hn::MaxLanes(d);
  V row[NV];
  for_constants<NV>([&](auto v) { row[v] = hn::LoadU(d, b + v * kLanes); });
  for_constants<R>([&](auto r) {
    const V x = hn::Set(d, a.template at<r>(t));
    for_constants<NV>([&](auto v) { acc[r][v] = hn::MulAdd(x, row[v], acc[r][v]); });
  });
}

/// The same, kBesideTerms terms in a turn of the loop. Where registers are few a term is 19 short
/// instructions, and a loop of one term spends a fifth more on itself: a core whose other thread is busy
/// issues half as many as when alone, and then they are what takes the time.
template <bool kPacked, int R, int NV, class D, class Beside, typename E = hn::TFromD<D>,
          class V = hn::Vec<D>>
HWY_INLINE void add_terms_unrolled(D d, const E* HWY_RESTRICT a, int64_t a_row, const E* HWY_RESTRICT b,
                                   int64_t b_step, int64_t n, V (&acc)[R][NV], Beside beside) {
  LeftSide<kPacked, R, E> left(a, a_row);
  HWY_UNROLL(1)
  for (; n >= kBesideTerms; n -= kBesideTerms) {
    beside();
    left.keep_apart();
    HWY_UNROLL(16)
    for (int64_t t = 0; t < kBesideTerms; ++t) {
      add_term(d, left, t, b + t * b_step, acc);
      // Loads of the next term would be taken among those of this one, for which there are no registers.
      asm volatile("" : "+r"(b));
    }
    left.advance(kBesideTerms);
    b += kBesideTerms * b_step;
  }
  if (n > 0) beside();
  HWY_UNROLL(1)
  for (; n > 0; --n) {
    add_term(d, left, 0, b, acc);
    left.advance(1);
    b += b_step;
  }
}

/// acc[r][v] = Σ_t A(r, t) · b[t · b_step + v], t < n, in order of t. A(r, t) is a[t · R + r] where kPacked,
/// else a[r · a_row + t]. Calls beside() before every kBesideTerms terms.
template <bool kPacked, int R, int NV, class D, class Beside, typename E = hn::TFromD<D>,
          class V = hn::Vec<D>>
HWY_INLINE void product(D d, const E* a, int64_t a_row, const E* b, int64_t b_step, int64_t n,
                        V (&acc)[R][NV], Beside beside) {
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < NV; ++v) acc[r][v] = hn::Zero(d);
  }
  if constexpr (kManyRegisters) {
    add_terms<kPacked>(d, a, a_row, b, b_step, n, acc, beside);
  } else {
    add_terms_unrolled<kPacked>(d, a, a_row, b, b_step, n, acc, beside);
  }
}

template <class D, class V>
HWY_INLINE V horner(D, V, V sum) {
  return sum;
}

template <class D, class V, typename... Rest>
HWY_INLINE V horner(D d, V x, V sum, double coefficient, Rest... rest) {
  return horner(d, x, hn::MulAdd(sum, x, hn::Set(d, static_cast<hn::TFromD<D>>(coefficient))), rest...);
}

/// 2^x for x < 127 (1023), 0 for x < −126.5 (−1022.5) and −inf; 2^0 is exactly 1. Relative error 1.5e-7
/// (4e-16). Adding `magic` rounds x to an integer n and leaves n + the exponent's bias in the lowest bits.
template <class D, class V>
HWY_INLINE V exp2(D d, V x) {
  using E = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  constexpr bool kSingle = sizeof(E) == 4;
  constexpr E kLowest = kSingle ? -127 : -1023;
  const V magic = hn::Set(d, static_cast<E>(kSingle ? 12582912.0 + 127 : 6755399441055744.0 + 1023));
  x = hn::Max(x, hn::Set(d, kLowest));
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));
  V power;
  if constexpr (kSingle) {  // a minimax polynomial on [−1/2, 1/2]
    power = horner(d, f, hn::Set(d, static_cast<E>(0.001326472731307149)), 0.009671512991189957,
                   0.05550733581185341, 0.24022242426872253, 0.6931470036506653, 1.0);
  } else {  // the Taylor series: (ln 2)^k / k!
    power =
        horner(d, f, hn::Set(d, static_cast<E>(1.3691488853904128e-12)), 2.5678435993488204e-11,
               4.4455382718708115e-10, 7.0549116208011231e-09, 1.0178086009239699e-07, 1.3215486790144309e-06,
               1.5252733804059841e-05, 1.5403530393381608e-04, 1.3333558146428443e-03, 9.6181291076284772e-03,
               5.5504108664821580e-02, 2.4022650695910071e-01, 6.9314718055994531e-01, 1.0);
  }
  const V scale = hn::BitCast(d, hn::ShiftLeft < kSingle ? 23 : 52 > (hn::BitCast(du, shifted)));
  return hn::Mul(power, scale);
}

}  // namespace distca::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
