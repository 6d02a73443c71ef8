// Declarations of Metal's for clang to check a kernel against: its address spaces are real ones
// here, so that pointers into different kinds of memory do not mix; and there is no double.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t, uchar;
typedef unsigned short uint16_t, ushort;
typedef unsigned int uint32_t, uint;
typedef unsigned long uint64_t, ulong, size_t;
typedef long ptrdiff_t;
typedef _Float16 float16_t;
typedef __bf16 bfloat16_t;
struct complex64_t {
  float real, imag;
};
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define double metal_has_no_double
// keywords, so that nothing can have these names
#define half _Float16
#define bfloat __bf16

namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
// clang-format off: a declaration a line
template <class T> T simd_shuffle(T, ushort);
template <class T> T simd_broadcast(T, ushort);
template <class T> T simd_shuffle_xor(T, ushort);
template <class T> T simd_shuffle_up(T, ushort);
template <class T> T simd_shuffle_down(T, ushort);
template <class T> T simd_shuffle_and_fill_up(T, T, ushort);
template <class T> T simd_sum(T);
template <class T> T simd_product(T);
template <class T> T simd_max(T);
template <class T> T simd_min(T);
template <class T> T simd_prefix_inclusive_sum(T);
template <class T> T simd_prefix_exclusive_sum(T);
#define GPU_MATH_1(name) float name(float); half name(half); bfloat name(bfloat);
#define GPU_MATH                                                                        \
  GPU_MATH_1(exp) GPU_MATH_1(exp2) GPU_MATH_1(log) GPU_MATH_1(log2) GPU_MATH_1(sin)     \
  GPU_MATH_1(cos) GPU_MATH_1(tanh) GPU_MATH_1(sqrt) GPU_MATH_1(rsqrt)                   \
  float pow(float, float); float divide(float, float); float sincos(float, thread float&);
GPU_MATH
namespace precise {
GPU_MATH
}
namespace fast {
GPU_MATH
}
GPU_MATH_1(floor) GPU_MATH_1(ceil) GPU_MATH_1(rint) GPU_MATH_1(abs) GPU_MATH_1(fabs)
int abs(int);
float fma(float, float, float);
bool isnan(float);
bool isinf(float);
template <class T, class X> T as_type(X);
template <class T> T min(T, T);
template <class T> T max(T, T);
template <class T> T clamp(T, T, T);
template <class T> T select(T, T, bool);
// clang-format on
}  // namespace metal
using namespace metal;
