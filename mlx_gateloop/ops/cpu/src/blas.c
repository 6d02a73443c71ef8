/* The BLAS bridge. MLX's Linux wheel is linked with the reference BLAS; NumPy's brings OpenBLAS.
 *
 * Loaded into the global scope before libmlx, these cblas_sgemm, cblas_dgemm and cblas_cgemm
 * replace the reference's and pass every product to OpenBLAS, built with 64-bit integers. They do
 * so for the whole process, and expect 32-bit integers: a library that calls the same names with
 * 64-bit ones would get wrong results.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

enum { ROW_MAJOR = 101, COLUMN_MAJOR = 102, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

/* The signature for three types of scalars; complex ones are passed by address. */
#define GEMM(name, scalar, element, integer)                                                       \
  void name(int order, int trans_a, int trans_b, integer m, integer n, integer k, scalar alpha,    \
            const element* a, integer lda, const element* b, integer ldb, scalar beta, element* c, \
            integer ldc)
static struct openblas {
  GEMM((*sgemm), float, float, int64_t);
  GEMM((*dgemm), double, double, int64_t);
  GEMM((*cgemm), const void*, void, int64_t);
  void (*sgemv)(int order, int trans, int64_t rows, int64_t columns, float alpha, const float* a,
                int64_t lda, const float* x, int64_t stride_x, float beta, float* y,
                int64_t stride_y);
} openblas;
static atomic_long calls;

/* Looks a function up by the name in NumPy's build, or by OpenBLAS's own. */
static int find(void* library, const char* name, void* function) {
  char symbol[64];
  snprintf(symbol, sizeof symbol, "scipy_%s", name);
  void* found = dlsym(library, symbol);
  if (!found) found = dlsym(library, name);
  *(void**)function = found;
  return found != NULL;
}

/* Returns 0 if connected, 1 if the library does not load, 2 if it lacks a function. */
EXPORT int mlx_gateloop_blas_connect(const char* openblas_path) {
  void* library = dlopen(openblas_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return 1;
  struct openblas found;
  if (!find(library, "cblas_sgemm64_", &found.sgemm) ||
      !find(library, "cblas_sgemv64_", &found.sgemv) ||
      !find(library, "cblas_dgemm64_", &found.dgemm) ||
      !find(library, "cblas_cgemm64_", &found.cgemm))
    return 2;
  openblas = found;
  return 0;
}

/* The number of products so far. */
EXPORT long mlx_gateloop_blas_calls(void) {
  return atomic_load_explicit(&calls, memory_order_relaxed);
}

static void count(void) { atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); }

/* For one row or column, as in decoding, gemv reads the matrix once and does not pack it. */
static GEMM(sgemm_by_column, float, float, int64_t) {
  int plain_a = trans_a == NO_TRANSPOSE, plain_b = trans_b == NO_TRANSPOSE;
  if (k && n == 1)
    openblas.sgemv(order, trans_a, plain_a ? m : k, plain_a ? k : m, alpha, a, lda, b,
                   plain_b ? 1 : ldb, beta, c, 1);
  else if (k && m == 1) /* its transpose: c' = b' a' */
    openblas.sgemv(order, plain_b ? TRANSPOSE : NO_TRANSPOSE, plain_b ? k : n, plain_b ? n : k,
                   alpha, b, ldb, a, plain_a ? lda : 1, beta, c, ldc);
  else openblas.sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

EXPORT GEMM(cblas_sgemm, float, float, int) {
  count();
  if (order == ROW_MAJOR) /* in column order every matrix is its transpose: c' = b' a' */
    sgemm_by_column(COLUMN_MAJOR, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
  else sgemm_by_column(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

EXPORT GEMM(cblas_dgemm, double, double, int) {
  count();
  openblas.dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

EXPORT GEMM(cblas_cgemm, const void*, void, int) {
  count();
  openblas.cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
