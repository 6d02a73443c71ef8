// The part of Metal's language and library that kernels here may use.
#pragma once
#include "half.h"

#define device
#define constant
#define thread
#define threadgroup
typedef half float16_t;
typedef bfloat bfloat16_t;
struct complex64_t {
  float real, imag;
};

#define GPU_LINE int line = __builtin_LINE()
namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
inline void threadgroup_barrier(mem_flags flags, GPU_LINE) { gpu::barrier(uint(flags), line); }
inline void simdgroup_barrier(mem_flags flags, GPU_LINE) { gpu::simd_barrier(uint(flags), line); }

// Exchange between lanes; a shift past the end of the simdgroup keeps the lane's own value.
inline uint own_lane() { return gpu::position().thread_index_in_simdgroup; }
#define GPU_LANE(name, from)                     \
  template <class X, class T = gpu::value_of<X>> \
  T name(X x, ushort n, GPU_LINE) {              \
    return gpu::lane<T>(from, x, line);          \
  }
GPU_LANE(simd_shuffle, n)
GPU_LANE(simd_broadcast, n)
GPU_LANE(simd_shuffle_xor, own_lane() ^ n)
GPU_LANE(simd_shuffle_up, own_lane() < n ? own_lane() : own_lane() - n)
GPU_LANE(simd_shuffle_down, own_lane() + n < gpu::kLanes ? own_lane() + n : own_lane())
#undef GPU_LANE
template <class X, class T = gpu::value_of<X>>
T simd_shuffle_and_fill_up(X x, T fill, ushort n, GPU_LINE) {
  const T found = simd_shuffle_up(x, n, line);
  return own_lane() < n ? fill : found;
}
#define GPU_FOLD(name, start, end, combined)                                        \
  template <class X, class T = gpu::value_of<X>>                                    \
  T name(X given, GPU_LINE) {                                                       \
    const T x = given;                                                              \
    return gpu::fold(x, T(start), end, line, [](T a, T b) { return T(combined); }); \
  }
GPU_FOLD(simd_sum, 0, gpu::kLanes, a + b)
GPU_FOLD(simd_product, 1, gpu::kLanes, a* b)
GPU_FOLD(simd_max, x, gpu::kLanes, a < b ? b : a)
GPU_FOLD(simd_min, x, gpu::kLanes, b < a ? b : a)
GPU_FOLD(simd_prefix_inclusive_sum, 0, own_lane() + 1, a + b)
GPU_FOLD(simd_prefix_exclusive_sum, 0, own_lane(), a + b)
#undef GPU_FOLD

template <class T, class X>
T as_type(X x) {
  static_assert(sizeof(T) == sizeof(X));
  return __builtin_bit_cast(T, x);
}

// Without `precise` a function may be Metal's fast one, whose error reaches 2^-13 where the precise
// one's is the rounding (Metal Shading Language specification, tables 8.1 and 8.2). Here it does.
inline float coarse(float x) { return x * (1 + 0x1p-13f); }
inline float exact(float x) { return x; }
#define GPU_MATH_1(name, value)                \
  inline float name(float x) { return value; } \
  template <int E>                             \
  gpu::Half<E> name(gpu::Half<E> x) {          \
    return gpu::Half<E>(name(float(x)));       \
  }
#define GPU_MATH(rounded)                                                      \
  GPU_MATH_1(exp, rounded(__builtin_expf(x)))                                  \
  GPU_MATH_1(exp2, rounded(__builtin_exp2f(x)))                                \
  GPU_MATH_1(log, rounded(__builtin_logf(x)))                                  \
  GPU_MATH_1(log2, rounded(__builtin_log2f(x)))                                \
  GPU_MATH_1(sin, rounded(__builtin_sinf(x)))                                  \
  GPU_MATH_1(cos, rounded(__builtin_cosf(x)))                                  \
  GPU_MATH_1(tanh, rounded(__builtin_tanhf(x)))                                \
  GPU_MATH_1(sqrt, rounded(__builtin_sqrtf(x)))                                \
  GPU_MATH_1(rsqrt, rounded(1 / __builtin_sqrtf(x)))                           \
  inline float pow(float x, float y) { return rounded(__builtin_powf(x, y)); } \
  inline float divide(float x, float y) { return rounded(x / y); }             \
  inline float sincos(float x, float& c) {                                     \
    c = rounded(__builtin_cosf(x));                                            \
    return rounded(__builtin_sinf(x));                                         \
  }
GPU_MATH(coarse)
namespace precise {
GPU_MATH(exact)
}
namespace fast {
GPU_MATH(coarse)
}
GPU_MATH_1(floor, __builtin_floorf(x))
GPU_MATH_1(ceil, __builtin_ceilf(x))
GPU_MATH_1(rint, __builtin_rintf(x))
GPU_MATH_1(abs, __builtin_fabsf(x))
GPU_MATH_1(fabs, __builtin_fabsf(x))
inline int abs(int x) { return x < 0 ? -x : x; }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
template <class A, class B, class T = std::common_type_t<gpu::value_of<A>, gpu::value_of<B>>>
T min(A a, B b) {
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B, class T = std::common_type_t<gpu::value_of<A>, gpu::value_of<B>>>
T max(A a, B b) {
  return T(a) < T(b) ? T(b) : T(a);
}
template <class X, class T = gpu::value_of<X>>
T clamp(X x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
T select(T a, T b, bool condition) {
  return condition ? b : a;
}

}  // namespace metal
using namespace metal;
