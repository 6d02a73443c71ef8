#include "pointwise.h"

#include "parallel.h"
#include "vector_math.h"

namespace gateloop {

namespace {

constexpr float kHalfRoot = 0.70710678f;          // 1 / sqrt(2), rounded to float32,
constexpr float kHalfRootRest = 1.21016175e-08f;  // and the remainder
constexpr float kDensity = 0.39894228f;           // 1 / sqrt(2 pi)

// The sigmoid as value times factor, both normal numbers: below -87 their product is not, but x
// times it may be again.
struct Scaled {
  float value, factor;
};

GATELOOP_INLINE Scaled scaled_sigmoid(float x) {
  float a = -fabsf(x), e = expf(a < -64 ? a + 32 : a);  // where 1 + e is 1 with and without the 32
  return {(x >= 0 ? 1 : e) / (1 + e), x < -64 ? 1.2664165549e-14f : 1};  // exp(-32)
}

GATELOOP_INLINE float sigmoid(float x) {
  auto [value, factor] = scaled_sigmoid(x);
  return value * factor;
}

// Above 13 Phi is 1 in float32, and an infinity has no remainder. NaN is kept.
GATELOOP_INLINE float within_range(float x) {
  x = x > 13 ? 13 : x;
  return x < -15 ? -15 : x;
}

// 0 where GELU and its derivative are 0 but for subnormal numbers, else 1. The vector variants
// compute lanes whose results are not normal numbers one by one, ten times as slow. A factor keeps
// arguments away from there; the compiler would move a selection behind the functions.
GATELOOP_INLINE float kept(float x) { return x < -13.4f ? 0 : 1; }

// The normal distribution's Phi(x) = erfc(z) / 2 at z = -x / sqrt(2). erfc is steep, so
// rounding z would cost 2 z^2 times as much. Its remainder r enters by
// erfc(z + r) = erfc(z) (1 - s r). The slope s = -erfc'(z) / erfc(z) is z + sqrt(z^2 + 4 / pi) to a
// few percent for z > 0 (Abramowitz and Stegun, 7.1.13), and negligible below.
GATELOOP_INLINE float normal(float x) {
  float z = -x * kHalfRoot;
  float rest = -x * kHalfRootRest - std::fma(x, kHalfRoot, z);
  float slope = z + std::sqrt(z * z + 1.2732395f);
  return 0.5f * erfcf(z) * (1 - slope * rest);
}

// x times the normal density, with the rounding of x^2 corrected in the same way.
GATELOOP_INLINE float weighted_density(float x) {
  float square = x * x, rest = std::fma(x, x, -square);
  return x * kDensity * (expf(-0.5f * square) * (1 - 0.5f * rest));
}

template <Activation F>
GATELOOP_INLINE float value(float x) {
  if constexpr (F == Activation::gelu) return x * (normal(within_range(x) * kept(x)) * kept(x));
  if constexpr (F == Activation::silu) {
    auto [value, factor] = scaled_sigmoid(x);
    return x * value * factor;
  }
  return sigmoid(x);
}

template <Activation F>
GATELOOP_INLINE float derivative(float x) {
  if constexpr (F == Activation::gelu) {
    float near = within_range(x) * kept(x);
    return (normal(near) + weighted_density(near)) * kept(x);
  }
  auto [value, factor] = scaled_sigmoid(x);
  float rest = sigmoid(-x);
  return (F == Activation::silu ? value * (1 + x * rest) : value * rest) * factor;
}

constexpr size_t kRow = 512;  // numbers between float32 and their own type

template <Activation F>
GATELOOP_MULTIVERSION void forward(size_t begin, size_t end, Source x, Sink y) {
  float in[kRow], out[kRow];
  for (; begin < end; begin += kRow) {
    int n = int(std::min(kRow, end - begin));
    const float* from = x.read(begin, n, in);
    float* to = y.row(begin, out);
#pragma GCC ivdep
    for (int i = 0; i < n; ++i) to[i] = value<F>(from[i]);
    y.write(begin, n, to);
  }
}

template <Activation F>
GATELOOP_MULTIVERSION void backward(size_t begin, size_t end, Source x, Source dy, Sink dx) {
  float in[kRow], along[kRow], out[kRow];
  for (; begin < end; begin += kRow) {
    int n = int(std::min(kRow, end - begin));
    const float *from = x.read(begin, n, in), *d = dy.read(begin, n, along);
    float* to = dx.row(begin, out);
#pragma GCC ivdep
    for (int i = 0; i < n; ++i) to[i] = d[i] * derivative<F>(from[i]);
    dx.write(begin, n, to);
  }
}

auto forward_for(Activation f) {
  return f == Activation::gelu   ? forward<Activation::gelu>
         : f == Activation::silu ? forward<Activation::silu>
                                 : forward<Activation::sigmoid>;
}

auto backward_for(Activation f) {
  return f == Activation::gelu   ? backward<Activation::gelu>
         : f == Activation::silu ? backward<Activation::silu>
                                 : backward<Activation::sigmoid>;
}

}  // namespace

std::vector<mx::Shape> Pointwise::output_shapes(const Arrays& inputs) {
  return {inputs[0].shape()};
}

Work Pointwise::work(const Arrays& inputs, Arrays& outputs) {
  return [n = inputs[0].size(), x = source_of(inputs[0]), y = sink_of(outputs[0]),
          run = forward_for(options)] {
    split_flat(n, [&](size_t first, size_t last) { run(first, last, x, y); });
  };
}

Arrays Pointwise::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>&) {
  auto along = mx::astype(tangents[0], primals[0].dtype(), stream());
  return PointwiseGradient::make({primals[0], along}, options, stream());
}

Arrays Pointwise::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>&,
                      const Arrays&) {
  auto dy = mx::astype(cotangents[0], primals[0].dtype(), stream());
  return PointwiseGradient::make({primals[0], dy}, options, stream());
}

std::pair<Arrays, std::vector<int>> Pointwise::vmap(const Arrays& inputs,
                                                    const std::vector<int>& axes) {
  return {make(mapped_first(inputs, axes), options, stream()), {0}};
}

// The composition whose derivatives are written above.
Arrays Pointwise::composed(const Arrays& inputs, Activation function, mx::Stream s) {
  return make(inputs, function, s);
}

std::vector<mx::Shape> PointwiseGradient::output_shapes(const Arrays& inputs) {
  require(inputs[0].shape() == inputs[1].shape(), "an activation and its gradient differ in shape");
  return {inputs[0].shape()};
}

Work PointwiseGradient::work(const Arrays& inputs, Arrays& outputs) {
  return [n = inputs[0].size(), x = source_of(inputs[0]), dy = source_of(inputs[1]),
          dx = sink_of(outputs[0]), run = backward_for(options)] {
    split_flat(n, [&](size_t first, size_t last) { run(first, last, x, dy, dx); });
  };
}

std::pair<Arrays, std::vector<int>> PointwiseGradient::vmap(const Arrays& inputs,
                                                            const std::vector<int>& axes) {
  return {make(mapped_first(inputs, axes), options, stream()), {0}};
}

Arrays PointwiseGradient::composed(const Arrays& given, Activation function, mx::Stream s) {
  auto inputs = widened(given, s);
  auto x = inputs[0];
  auto times = [&](const mx::array& a, const mx::array& b) { return mx::multiply(a, b, s); };
  auto one = mx::array(1.0f);
  auto derivative = [&]() {
    if (function == Activation::gelu) {
      auto phi =
          times(mx::array(0.5f), mx::add(one, mx::erf(times(x, mx::array(kHalfRoot)), s), s));
      auto density = times(mx::array(kDensity), mx::exp(times(mx::array(-0.5f), times(x, x)), s));
      return mx::add(phi, times(x, density), s);
    }
    auto sigmoid = mx::sigmoid(x, s), rest = mx::subtract(one, sigmoid, s);
    if (function == Activation::sigmoid) return times(sigmoid, rest);
    return times(sigmoid, mx::add(one, times(x, rest), s));
  };
  return {mx::astype(times(inputs[1], derivative()), given[0].dtype(), s)};
}

}  // namespace gateloop
