// What the shared text takes from Metal.
#define GL_FN inline
#define GL_SHARED threadgroup
#define GL_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define GL_UNROLL _Pragma("clang loop unroll(full)")
#define GL_UNROLL_4 _Pragma("clang loop unroll_count(4)")
GL_FN float gl_exp(float x) { return metal::exp(x); }
GL_FN float gl_sincos(float x, thread float& c) { return metal::sincos(x, c); }
