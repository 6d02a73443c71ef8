// Products of small matrices in tiles of registers; rows are kLanes floats or a multiple of it.
#pragma once

#include "vector_math.h"

namespace gateloop {

constexpr int kLanes = 16;

// The elements of the left factor that are not zero.
enum class Part { whole, lower, upper };

// A left factor with its element (i, p) at data[i * row + p * column].
struct Left {
  const float* data;
  int row, column;
  Part part = Part::whole;
};

template <int ROWS, int COLUMNS>
GATELOOP_INLINE void multiply_tile(int begin, int end, const float* a, int row, int column,
                                   const float* b, int width, float* c) {
  float sum[ROWS][COLUMNS];
  for (int r = 0; r < ROWS; ++r)
    for (int x = 0; x < COLUMNS; ++x) sum[r][x] = c[r * width + x];
  for (int p = begin; p < end; ++p)
    for (int r = 0; r < ROWS; ++r)
      for (int x = 0; x < COLUMNS; ++x) sum[r][x] += a[r * row + p * column] * b[p * width + x];
  for (int r = 0; r < ROWS; ++r)
    for (int x = 0; x < COLUMNS; ++x) c[r * width + x] = sum[r][x];
}

template <int ROWS>
GATELOOP_INLINE void multiply_rows(int i, int inner, int width, Left a, const float* b, float* c) {
  int begin = a.part == Part::upper ? i : 0, end = a.part == Part::lower ? i + ROWS : inner, x = 0;
  const float* rows = a.data + i * a.row;
  c += i * width;
  for (; x + 2 * kLanes <= width; x += 2 * kLanes)
    multiply_tile<ROWS, 2 * kLanes>(begin, end, rows, a.row, a.column, b + x, width, c + x);
  if (x < width)
    multiply_tile<ROWS, kLanes>(begin, end, rows, a.row, a.column, b + x, width, c + x);
}

// c += a b for c [rows, width] and b [inner, width].
GATELOOP_INLINE void multiply(int rows, int inner, int width, Left a, const float* b, float* c) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) multiply_rows<4>(i, inner, width, a, b, c);
  for (; i < rows; ++i) multiply_rows<1>(i, inner, width, a, b, c);
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

// c = a b' for a [rows, inner] and b [columns, inner]; c's rows are `stride` apart.
GATELOOP_INLINE void dots(int rows, int columns, int inner, const float* a, const float* b,
                          float* c, int stride) {
  int i = 0;
  for (; i + 4 <= rows; i += 4)
    dots_rows<4>(columns, inner, a + i * inner, b, c + i * stride, stride);
  for (; i < rows; ++i) dots_rows<1>(columns, inner, a + i * inner, b, c + i * stride, stride);
}

}  // namespace gateloop
