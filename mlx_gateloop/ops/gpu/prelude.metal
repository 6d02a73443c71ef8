// Metal's definitions for the shared text. Without `precise`, exp and sincos would be the fast
// variants, with errors up to 2^-13; MLX's own operations use `precise` too.
#define GL_FN inline
#define GL_SHARED threadgroup
#define GL_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define GL_KEEP_POINTER(x)
#define GL_KEEP_INDEX(i)
#define GL_UNROLL _Pragma("clang loop unroll(full)")
GL_FN float gl_exp(float x) { return metal::precise::exp(x); }
GL_FN float gl_ratio(float x, float y) { return x / y; }
GL_FN float gl_sincos(float x, thread float& c) { return metal::precise::sincos(x, c); }
