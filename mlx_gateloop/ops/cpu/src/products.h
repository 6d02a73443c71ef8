// Products of small matrices of float32 in tiles of registers. Rows are whole vectors, kLanes
// floats or a multiple of it, unless another stride is given.
#pragma once

namespace gateloop {

constexpr int kLanes = 16;

// Vectors of floats, written out, as the compiler leaves some tiles of arrays in memory. It leaves
// vectors there, too, that are wider than a register: then products take 50 times as long.
template <int LANES>
struct Registers {
  typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
  typedef Vector Unaligned __attribute__((aligned(sizeof(float)), may_alias));
};

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
