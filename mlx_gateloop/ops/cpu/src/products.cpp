#include "products.h"

#include <algorithm>

#include "vector_math.h"

namespace gateloop {

namespace {

template <int LANES, int ROWS, int VECTORS>
GATELOOP_INLINE void multiply_tile(int begin, int end, const float* a, int row, int column,
                                   const float* b, int width, float* c, int stride) {
  using Unaligned = typename Registers<LANES>::Unaligned;
  typename Registers<LANES>::Vector sum[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r)
    for (int x = 0; x < VECTORS; ++x) sum[r][x] = ((const Unaligned*)(c + r * stride))[x];
  for (int p = begin; p < end; ++p)
    for (int r = 0; r < ROWS; ++r)
      for (int x = 0; x < VECTORS; ++x)
        sum[r][x] += a[r * row + p * column] * ((const Unaligned*)(b + p * width))[x];
  for (int r = 0; r < ROWS; ++r)
    for (int x = 0; x < VECTORS; ++x) ((Unaligned*)(c + r * stride))[x] = sum[r][x];
}

template <int LANES, int ROWS>
GATELOOP_INLINE void multiply_rows(int i, int begin, int end, int width, Left a, const float* b,
                                   float* c, int stride) {
  int x = 0;
  const float* rows = a.data + i * a.row;
  c += i * stride;
  for (; x + 2 * LANES <= width; x += 2 * LANES)
    multiply_tile<LANES, ROWS, 2>(begin, end, rows, a.row, a.column, b + x, width, c + x, stride);
  if (x < width)
    multiply_tile<LANES, ROWS, 1>(begin, end, rows, a.row, a.column, b + x, width, c + x, stride);
}

template <int ROWS, int COLUMNS>
GATELOOP_INLINE void dots_tile(int inner, const float* a, const float* b, float* c, int stride) {
  float sum[ROWS][COLUMNS][kLanes] = {};
  for (int j = 0; j < inner; j += kLanes)
    for (int r = 0; r < ROWS; ++r)
      for (int s = 0; s < COLUMNS; ++s)
        for (int x = 0; x < kLanes; ++x)
          sum[r][s][x] += a[r * inner + j + x] * b[s * inner + j + x];
  for (int r = 0; r < ROWS; ++r)
    for (int s = 0; s < COLUMNS; ++s) {
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (int x = 0; x < kLanes; ++x) total += sum[r][s][x];
      c[r * stride + s] = total;
    }
}

template <int ROWS>
GATELOOP_INLINE void dots_rows(int columns, int inner, const float* a, const float* b, float* c,
                               int stride) {
  int s = 0;
  for (; s + 4 <= columns; s += 4) dots_tile<ROWS, 4>(inner, a, b + s * inner, c + s, stride);
  for (; s < columns; ++s) dots_tile<ROWS, 1>(inner, a, b + s * inner, c + s, stride);
}

// to = from' in squares that stay in the nearest cache.
GATELOOP_INLINE void transpose(int rows, int columns, const float* from, float* to) {
  for (int i = 0; i < rows; i += kLanes)
    for (int j = 0; j < columns; j += kLanes)
      for (int x = 0; x < kLanes; ++x)
        for (int r = 0; r < kLanes; ++r)
          to[(j + x) * rows + i + r] = from[(i + r) * columns + j + x];
}

template <int LANES>
GATELOOP_INLINE void multiply_all(int rows, int inner, int width, Left a, const float* b, float* c,
                                  int stride) {
  bool lower = a.part == Part::lower, upper = a.part == Part::upper;
  auto row = [&](int i, int begin, int end) __attribute__((always_inline)) {
    if (begin < end) multiply_rows<LANES, 1>(i, begin, end, width, a, b, c, stride);
  };
  int i = 0;
  for (; i + 4 <= rows; i += 4) {
    multiply_rows<LANES, 4>(i, upper ? i + 3 : 0, lower ? i + 1 : inner, width, a, b, c, stride);
    // The triangle beside the diagonal: no zero is multiplied, as 0 times infinity is NaN.
    for (int r = 0; r < 3 && (lower || upper); ++r)
      if (lower) row(i + r + 1, i + 1, i + r + 2);
      else row(i + r, i + r, i + 3);
  }
  for (; i < rows; ++i) row(i, upper ? i : 0, lower ? i + 1 : inner);
}

}  // namespace

GATELOOP_MULTIVERSION void multiply(int rows, int inner, int width, Left a, const float* b,
                                    float* c, int stride) {
  switch (lanes()) {
    case 16: return multiply_all<16>(rows, inner, width, a, b, c, stride);
    case 8: return multiply_all<8>(rows, inner, width, a, b, c, stride);
    default: return multiply_all<4>(rows, inner, width, a, b, c, stride);
  }
}

GATELOOP_MULTIVERSION void dots(int rows, int columns, int inner, const float* a, const float* b,
                                float* c, int stride, float* transposed) {
  int i = 0;
  if (columns % kLanes == 0) {  // sums along a vector cost more than to transpose
    transpose(columns, inner, b, transposed);
    for (int r = 0; r < rows; ++r) std::fill_n(c + r * stride, columns, 0.0f);
    multiply(rows, inner, columns, {a, inner, 1}, transposed, c, stride);
    return;
  }
  for (; i + 4 <= rows; i += 4)
    dots_rows<4>(columns, inner, a + i * inner, b, c + i * stride, stride);
  for (; i < rows; ++i) dots_rows<1>(columns, inner, a + i * inner, b, c + i * stride, stride);
}

}  // namespace gateloop
