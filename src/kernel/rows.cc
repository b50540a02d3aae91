#include "kernel/rows.h"

#include <cstring>

namespace distca {
namespace {

// Sums that don't wait for each other: the compiler keeps them in one vector.
constexpr int64_t kLanes = 16;

template <typename T>
void dots(T* out, const T* a, const T* b, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, a += width, b += width) {
    T lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    T sum = 0;
    for (; i < width; ++i) sum += a[i] * b[i];
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
    out[row] = sum;
  }
}

/// Row place(i) of `out` becomes source row index[i]. Documents stand in runs of rows, copied at once.
template <typename Place>
void copy_runs(void* out, const RowSources& sources, const int64_t* index, int64_t rows, int64_t row_bytes,
               const Place& place) {
  for (int64_t row = 0; row < rows;) {
    const bool first = index[row] < sources.first_rows;
    const int64_t begin = first ? index[row] : index[row] - sources.first_rows;
    const auto* from = static_cast<const char*>(first ? sources.first : sources.second) + begin * row_bytes;
    int64_t run = 1;
    while (row + run < rows && index[row + run] == index[row] + run && place(row + run) == place(row) + run &&
           (index[row + run] < sources.first_rows) == first)
      ++run;
    std::memcpy(static_cast<char*>(out) + place(row) * row_bytes, from, static_cast<size_t>(run * row_bytes));
    row += run;
  }
}

}  // namespace

void copy_rows(void* out, const RowSources& sources, const int64_t* index, int64_t rows, int64_t row_bytes) {
  copy_runs(out, sources, index, rows, row_bytes, [](int64_t row) { return row; });
}

void move_rows(void* out, const int64_t* out_index, const RowSources& sources, const int64_t* index,
               int64_t rows, int64_t row_bytes) {
  copy_runs(out, sources, index, rows, row_bytes, [out_index](int64_t row) { return out_index[row]; });
}

void row_dots(float* out, const float* a, const float* b, int64_t rows, int64_t width) {
  dots(out, a, b, rows, width);
}

void row_dots(double* out, const double* a, const double* b, int64_t rows, int64_t width) {
  dots(out, a, b, rows, width);
}

}  // namespace distca
