#include "kernel/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernel/bfloat16.h"

namespace distca {

template <typename T>
void merge_partials(int64_t rows, const int64_t* offsets, const int64_t* part_rows, int64_t heads,
                    int64_t head_dim, const T* part_o, const Accumulator<T>* part_lse, T* o,
                    Accumulator<T>* lse) {
  using A = Accumulator<T>;
  constexpr A kEmpty = -std::numeric_limits<A>::infinity();
  std::vector<A> sum(head_dim);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      A max = kEmpty;
      for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        max = std::max(max, part_lse[part_rows[i] * heads + head]);
      }
      std::fill(sum.begin(), sum.end(), A(0));
      A weights = 0;
      for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        const int64_t part = part_rows[i] * heads + head;
        if (part_lse[part] == kEmpty) continue;
        const A weight = std::exp(part_lse[part] - max);
        weights += weight;
        for (int64_t d = 0; d < head_dim; ++d) sum[d] += weight * load(part_o[part * head_dim + d]);
      }
      const int64_t out = row * heads + head;
      lse[out] = max + std::log(weights);
      for (int64_t d = 0; d < head_dim; ++d) {
        o[out * head_dim + d] = store<T>(weights > 0 ? sum[d] / weights : A(0));
      }
    }
  }
}

template <typename T>
void merge_split_rows(const SplitRows& split, int64_t heads, int64_t head_dim,
                      const TensorRows<const T>& part_o, const TensorRows<const Accumulator<T>>& part_lse,
                      T* o, Accumulator<T>* lse) {
  using A = Accumulator<T>;
  constexpr A kEmpty = -std::numeric_limits<A>::infinity();
  std::vector<A> sum(head_dim);
  for (int64_t i = 0; i < split.rows; ++i) {
    const int64_t* parts = split.parts + i * split.most;
    const int64_t count = std::find(parts, parts + split.most, split.empty) - parts;
    for (int64_t head = 0; head < heads; ++head) {
      A max = kEmpty, weights = 0;
      for (int64_t j = 0; j < count; ++j) max = std::max(max, part_lse.row(parts[j], heads)[head]);
      std::fill(sum.begin(), sum.end(), A(0));
      for (int64_t j = 0; j < count; ++j) {
        const A part = part_lse.row(parts[j], heads)[head];
        if (part == kEmpty) continue;
        const A weight = std::exp(part - max);
        const T* from = part_o.row(parts[j], heads * head_dim) + head * head_dim;
        weights += weight;
        for (int64_t d = 0; d < head_dim; ++d) sum[d] += weight * load(from[d]);
      }
      const int64_t out = split.out_rows[i] * heads + head;
      lse[out] = max + std::log(weights);
      for (int64_t d = 0; d < head_dim; ++d)
        o[out * head_dim + d] = store<T>(weights > 0 ? sum[d] / weights : A(0));
    }
  }
}

template <typename T>
void sum_split_rows(const SplitRows& split, int64_t elements, const TensorRows<const T>& parts, T* out) {
  using A = Accumulator<T>;
  std::vector<A> sum(elements);
  for (int64_t i = 0; i < split.rows; ++i) {
    const int64_t* from = split.parts + i * split.most;
    std::fill(sum.begin(), sum.end(), A(0));
    for (int64_t j = 0; j < split.most && from[j] != split.empty; ++j) {
      const T* part = parts.row(from[j], elements);
      for (int64_t e = 0; e < elements; ++e) sum[e] += load(part[e]);
    }
    T* to = out + split.out_rows[i] * elements;
    for (int64_t e = 0; e < elements; ++e) to[e] = store<T>(sum[e]);
  }
}

template void merge_partials(int64_t, const int64_t*, const int64_t*, int64_t, int64_t, const float*,
                             const float*, float*, float*);
template void merge_partials(int64_t, const int64_t*, const int64_t*, int64_t, int64_t, const double*,
                             const double*, double*, double*);
template void merge_partials(int64_t, const int64_t*, const int64_t*, int64_t, int64_t, const BFloat16*,
                             const float*, BFloat16*, float*);

#define DISTCA_SPLIT_ROWS(T)                                                                     \
  template void merge_split_rows(const SplitRows&, int64_t, int64_t, const TensorRows<const T>&, \
                                 const TensorRows<const Accumulator<T>>&, T*, Accumulator<T>*);  \
  template void sum_split_rows(const SplitRows&, int64_t, const TensorRows<const T>&, T*)
DISTCA_SPLIT_ROWS(float);
DISTCA_SPLIT_ROWS(double);
DISTCA_SPLIT_ROWS(BFloat16);
#undef DISTCA_SPLIT_ROWS

}  // namespace distca
