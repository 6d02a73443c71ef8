// Products of small matrices of float32 in tiles of registers. Rows are whole vectors, kLanes
// floats or a multiple of it, unless another stride is given.
#pragma once

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

// c += a b for c [rows, width] with rows `stride` apart and b [inner, width].
void multiply(int rows, int inner, int width, Left a, const float* b, float* c, int stride);

// c = a b' for a [rows, inner], b [columns, inner] and c [rows, columns] with rows `stride` apart.
// `transposed` is scratch space for inner * columns floats.
void dots(int rows, int columns, int inner, const float* a, const float* b, float* c, int stride,
          float* transposed);

}  // namespace gateloop
