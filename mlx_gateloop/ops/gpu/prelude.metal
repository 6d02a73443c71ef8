// What the shared text takes from Metal. Unless asked for `precise`, exp and sincos are Metal's fast
// ones, whose errors would reach 2^-13: MLX's own operations ask too.
#define GL_FN inline
#define GL_SHARED threadgroup
#define GL_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define GL_UNROLL _Pragma("clang loop unroll(full)")
GL_FN float gl_exp(float x) { return metal::precise::exp(x); }
GL_FN float gl_sincos(float x, thread float& c) { return metal::precise::sincos(x, c); }
