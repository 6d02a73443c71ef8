// Half-precision numbers that round after every operation, as a GPU's do.
#pragma once
#include "runtime.h"

namespace gpu {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// A sign, EXPONENT bits and the fraction; a float32 is rounded to the nearest, ties to even.
template <int EXPONENT>
struct Half {
  static constexpr int kFraction = 15 - EXPONENT, kCut = 23 - kFraction;
  static constexpr int kBias = (1 << (EXPONENT - 1)) - 1, kMost = (1 << EXPONENT) - 1;
  uint16_t bits;

  Half() = default;
  template <class X, class = std::enable_if_t<std::is_arithmetic_v<X>>>
  Half(X number) {
    const float x = float(number);
    const uint16_t sign = uint16_t(bits_of(x) >> 31 << 15);
    const float size = __builtin_fabsf(x);
    if (size != size) {
      bits = uint16_t(sign | kMost << kFraction | 1 << (kFraction - 1));
      return;
    }
    // Whole steps of the last bit that is left; below the least exponent they get no smaller.
    const int own = int(bits_of(size) >> 23) - 127, least = 1 - kBias;
    const int exponent = own < least ? least : own;
    const float step = __builtin_ldexpf(1.0f, exponent - kFraction);
    const bool finite = size < __builtin_inff();
    const uint32_t steps = finite ? uint32_t(__builtin_nearbyintf(size / step)) : 0;
    const int field = exponent + kBias;  // a carry out of the fraction goes into the exponent
    const uint32_t all = (uint32_t(field) << kFraction) + steps - (1u << kFraction);
    const bool infinite = !finite || all >= uint32_t(kMost) << kFraction;
    bits = uint16_t(sign | (infinite ? uint32_t(kMost) << kFraction : all));
  }
  operator float() const {
    const int field = bits >> kFraction & kMost, fraction = bits & ((1 << kFraction) - 1);
    const uint32_t sign = uint32_t(bits >> 15) << 31;
    if (field == kMost) return float_of(sign | 0x7F800000u | uint32_t(fraction) << kCut);
    const int whole = field ? fraction | 1 << kFraction : fraction;
    const float size = __builtin_ldexpf(float(whole), (field ? field : 1) - kBias - kFraction);
    return sign ? -size : size;
  }
};

// clang-format off: it knows no macro that takes an operator
#define GPU_HALF(op)                                                   \
  template <int E>                                                     \
  Half<E> operator op(Half<E> a, Half<E> b) {                          \
    return Half<E>(float(a) op float(b));                              \
  }                                                                    \
  template <int E, class X>                                            \
  Half<E>& operator op##=(Half<E>& a, X b) {                           \
    return a = Half<E>(float(a) op float(b));                          \
  }
GPU_HALF(+) GPU_HALF(-) GPU_HALF(*) GPU_HALF(/)
#undef GPU_HALF

template <int E>
struct is_number<Half<E>> : std::true_type {};
// clang-format on

}  // namespace gpu

typedef gpu::Half<5> half;
typedef gpu::Half<8> bfloat;
