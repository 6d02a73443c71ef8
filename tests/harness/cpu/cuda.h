// The part of CUDA's language that kernels here may use, with MLX's names for shapes.
#pragma once
#include "half.h"

typedef half __half;
typedef bfloat __nv_bfloat16;
struct complex64_t {
  float real, imag;
};
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define threadIdx (gpu::position().thread_position_in_threadgroup)
#define blockIdx (gpu::position().threadgroup_position_in_grid)
#define blockDim (gpu::position().threads_per_threadgroup)
#define gridDim (gpu::position().threadgroups_per_grid)

#define GPU_LINE int line = __builtin_LINE()
inline void __syncthreads(GPU_LINE) { gpu::barrier(gpu::FENCE_DEVICE | gpu::FENCE_SHARED, line); }
inline void __syncwarp(uint = ~0u, GPU_LINE) {
  gpu::simd_barrier(gpu::FENCE_DEVICE | gpu::FENCE_SHARED, line);
}
inline uint own_lane() { return gpu::position().thread_index_in_simdgroup; }
#define GPU_LANE(name, type, from)                \
  template <class X, class T = gpu::value_of<X>>  \
  T name(uint, X x, type n, int = 32, GPU_LINE) { \
    return gpu::lane<T>(from, x, line);           \
  }
GPU_LANE(__shfl_sync, int, uint(n) % gpu::kLanes)
GPU_LANE(__shfl_xor_sync, int, own_lane() ^ uint(n))
GPU_LANE(__shfl_up_sync, uint, own_lane() < n ? own_lane() : own_lane() - n)
GPU_LANE(__shfl_down_sync, uint, own_lane() + n < gpu::kLanes ? own_lane() + n : own_lane())
#undef GPU_LANE

#define expf __builtin_expf
#define logf __builtin_logf
#define sinf __builtin_sinf
#define cosf __builtin_cosf
#define __fdividef(x, y) ((x) / (y) * (1 + 0x1p-22f))  // 2 ulp
#define sqrtf __builtin_sqrtf
#define fmaf __builtin_fmaf
#define fabsf __builtin_fabsf
inline void sincosf(float x, float* s, float* c) {
  *s = __builtin_sinf(x);
  *c = __builtin_cosf(x);
}
inline uint __float_as_uint(float x) { return __builtin_bit_cast(uint, x); }
inline float __uint_as_float(uint x) { return __builtin_bit_cast(float, x); }
#define __builtin_assume(x) ((void)0)
