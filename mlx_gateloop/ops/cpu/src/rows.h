// Rows of numbers in any of three types: they are read and written as such, and are float32
// between.
#pragma once

#include <cstdint>
#include <cstring>

#include "vector_math.h"

namespace gateloop {

enum class Type { float32, float16, bfloat16 };

constexpr size_t size_of(Type type) { return type == Type::float32 ? 4 : 2; }

// To and from float32, rounded to the nearest, ties to even; NaN stays NaN.
void widen(Type from, int n, const uint16_t* x, float* y);
void narrow(Type to, int n, const float* x, uint16_t* y);

// Numbers to read; null if an array is absent.
struct Source {
  const void* data = nullptr;
  Type type = Type::float32;

  explicit operator bool() const { return data; }
  void skip(size_t count) { data = static_cast<const char*>(data) + count * size_of(type); }
  // The n numbers from `offset` on; in `buffer` unless they are float32.
  GATELOOP_INLINE const float* read(size_t offset, int n, float* buffer) const {
    if (type == Type::float32) return static_cast<const float*>(data) + offset;
    widen(type, n, static_cast<const uint16_t*>(data) + offset, buffer);
    return buffer;
  }
  GATELOOP_INLINE void copy(size_t offset, int n, float* to) const {
    const float* row = read(offset, n, to);
    if (row != to) std::memcpy(to, row, n * sizeof(float));
  }
};

// Numbers to write; null if an array is absent.
struct Sink {
  void* data = nullptr;
  Type type = Type::float32;

  explicit operator bool() const { return data; }
  void skip(size_t count) { data = static_cast<char*>(data) + count * size_of(type); }
  void clear(size_t offset, size_t n) const {
    std::memset(static_cast<char*>(data) + offset * size_of(type), 0, n * size_of(type));
  }
  // The address of the numbers from `offset` on; `buffer`, to be written later, unless float32.
  GATELOOP_INLINE float* row(size_t offset, float* buffer) const {
    return type == Type::float32 ? static_cast<float*>(data) + offset : buffer;
  }
  GATELOOP_INLINE void write(size_t offset, int n, const float* row) const {
    if (type == Type::float32) {
      float* found = static_cast<float*>(data) + offset;
      if (row != found) std::memcpy(found, row, n * sizeof(float));
    } else {
      narrow(type, n, row, static_cast<uint16_t*>(data) + offset);
    }
  }
};

}  // namespace gateloop
