// Rows of buffers, moved and multiplied on plain memory: what the exchanges around core attention do to every
// row once, at the speed of memory.
#pragma once

#include <cstdint>

namespace distca {

/// Two buffers whose rows are numbered through: those of `first`, then those of `second`.
struct RowSources {
  const void* first = nullptr;
  int64_t first_rows = 0;
  const void* second = nullptr;
};

/// Row i of `out` becomes source row index[i], for `rows` rows of `row_bytes` bytes. `out` overlaps neither
/// source.
void copy_rows(void* out, const RowSources& sources, const int64_t* index, int64_t rows, int64_t row_bytes);

/// Row out_index[i] of `out` becomes source row index[i]. Rows that are written are none of those read.
void move_rows(void* out, const int64_t* out_index, const RowSources& sources, const int64_t* index,
               int64_t rows, int64_t row_bytes);

/// out[i] = Σ_j a[i · width + j] · b[i · width + j] for i < rows.
void row_dots(float* out, const float* a, const float* b, int64_t rows, int64_t width);
void row_dots(double* out, const double* a, const double* b, int64_t rows, int64_t width);

}  // namespace distca
