#include "rows.h"

#include <bit>

namespace gateloop {

namespace {

constexpr uint32_t kSign = 0x8000, kInfinity = 0x7f800000;
constexpr uint32_t kHalfInfinity = 0x7c00, kHalfNan = 0x7e00, kBrainNan = 0x7fc0;

// Not by a product with a power of two: subnormal float32 are slow.
GATELOOP_INLINE float from_float16(uint16_t x) {
  constexpr uint32_t kBias = 127 - 15, kSmallest = 0x400;
  uint32_t size = x & ~kSign;
  uint32_t normal = (size << 13) + ((size >= kHalfInfinity ? 2 * kBias : kBias) << 23);
  float subnormal = float(int(size)) * 0x1p-24f;
  uint32_t bits = size < kSmallest ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | (x & kSign) << 16);
}

GATELOOP_INLINE uint16_t to_float16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x), size = bits & ~(kSign << 16);
  // Beside 0.5 the last bit of a float32 is that of a subnormal float16.
  float subnormal = std::bit_cast<float>(size) + 0.5f;
  uint32_t small = std::bit_cast<uint32_t>(subnormal) - std::bit_cast<uint32_t>(0.5f);
  uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
  uint32_t large = size > kInfinity ? kHalfNan : kHalfInfinity;
  uint32_t half = size < std::bit_cast<uint32_t>(0x1p-14f) ? small : normal;
  return (size >= std::bit_cast<uint32_t>(0x1p16f) ? large : half) | (bits >> 16 & kSign);
}

GATELOOP_INLINE float from_bfloat16(uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }

GATELOOP_INLINE uint16_t to_bfloat16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  bool is_nan = (bits & ~(kSign << 16)) > kInfinity;
  return is_nan ? kBrainNan | (bits >> 16 & kSign) : rounded;
}

}  // namespace

GATELOOP_MULTIVERSION void widen(Type from, int n, const uint16_t* x, float* y) {
  if (from == Type::float16)
    for (int i = 0; i < n; ++i) y[i] = from_float16(x[i]);
  else
    for (int i = 0; i < n; ++i) y[i] = from_bfloat16(x[i]);
}

GATELOOP_MULTIVERSION void narrow(Type to, int n, const float* x, uint16_t* y) {
  if (to == Type::float16)
    for (int i = 0; i < n; ++i) y[i] = to_float16(x[i]);
  else
    for (int i = 0; i < n; ++i) y[i] = to_bfloat16(x[i]);
}

}  // namespace gateloop
