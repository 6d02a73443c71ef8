// Functions that the compiler vectorizes through the C library's vector math (libmvec).
#pragma once

#include <cmath>

// glibc declares its vector variants for -ffast-math only, which breaks NaN and infinity. CMake
// finds which of them can be linked; for the others the loops call the scalar functions.
#define GATELOOP_VECTOR extern "C" __attribute__((simd("notinbranch")))
#ifdef GATELOOP_VECTOR_EXPF
GATELOOP_VECTOR float expf(float) noexcept;
#endif
#ifdef GATELOOP_VECTOR_SINF
GATELOOP_VECTOR float sinf(float) noexcept;
#endif
#ifdef GATELOOP_VECTOR_COSF
GATELOOP_VECTOR float cosf(float) noexcept;
#endif
#ifdef GATELOOP_VECTOR_ERFCF
GATELOOP_VECTOR float erfcf(float) noexcept;
#endif

// Variants for x86-64 with SSE2, AVX2 with FMA, and AVX-512; the loader selects one.
#ifdef GATELOOP_CLONES
#define GATELOOP_MULTIVERSION \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define GATELOOP_MULTIVERSION
#endif

// The floats in a register: AVX-512 has 16, AVX2 eight, SSE2 and NEON four.
inline int lanes() {
#ifdef GATELOOP_CLONES
  return __builtin_cpu_supports("avx512vl") ? 16 : __builtin_cpu_supports("avx2") ? 8 : 4;
#else
  return 4;
#endif
}

#define GATELOOP_INLINE __attribute__((always_inline)) inline
