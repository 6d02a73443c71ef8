// Metal's definitions for the shared text. Without `precise`, exp would be the fast variant, which
// rounds less exactly; MLX's own operations use `precise` too.
#define GL_FN inline
#define GL_SHARED threadgroup
#define GL_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define GL_KEEP_POINTER(x)
#define GL_KEEP_INDEX(i)
// The number of the lane whose index differs in one bit.
#define GL_SWAP(x, bit) metal::simd_shuffle_xor(x, ushort(bit))
#define GL_UNROLL _Pragma("clang loop unroll(full)")
GL_FN float gl_exp(float x) { return metal::precise::exp(x); }
GL_FN float gl_ratio(float x, float y) { return x / y; }
GL_FN float gl_fma(float x, float y, float z) { return metal::fma(x, y, z); }
GL_FN float gl_abs(float x) { return metal::fabs(x); }
GL_FN unsigned gl_bits(float x) { return as_type<unsigned>(x); }
GL_FN float gl_float(unsigned bits) { return as_type<float>(bits); }
