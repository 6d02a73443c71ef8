#include "layer_norm.h"

#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "vector_math.h"

namespace gateloop {

namespace {

// The rows of x: groups of rows that share their weights.
struct Sizes {
  int D;
  size_t groups, rows;  // rows: per group

  Sizes(const mx::array& x, const mx::array& weight)
      : D(x.shape(-1)), groups(weight.size() / D), rows(groups ? x.size() / D / groups : 0) {}
};

// Rows summed together for weight and bias, so that the order of additions, and the result, does
// not depend on the number of threads.
constexpr size_t kRows = 128;

struct Moments {
  float mean, scale;  // scale = 1 / sqrt(variance + eps)
};

GATELOOP_INLINE Moments moments(int D, const float* x, float eps) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < D; ++j) sum += x[j];
  float mean = sum / D;
#pragma omp simd reduction(+ : squares)
  for (int j = 0; j < D; ++j) squares += (x[j] - mean) * (x[j] - mean);
  return {mean, 1 / std::sqrt(squares / D + eps)};
}

GATELOOP_MULTIVERSION void forward(size_t rows, int D, float eps, const float* x,
                                   const float* weight, const float* bias, float* y) {
  for (size_t n = 0; n < rows; ++n, x += D, y += D) {
    auto [mean, scale] = moments(D, x, eps);
#pragma GCC ivdep
    for (int j = 0; j < D; ++j) y[j] = (x[j] - mean) * scale * weight[j] + bias[j];
  }
}

// With u = (x - mean) scale and g = weight dy: dx = scale (g - mean(g) - u mean(g u)),
// dweight = sum(dy u), dbias = sum(dy) over the rows.
GATELOOP_MULTIVERSION void backward(size_t rows, int D, float eps, const float* x,
                                    const float* weight, const float* dy, float* dx, float* dweight,
                                    float* dbias) {
  for (size_t n = 0; n < rows; ++n, x += D, dy += D, dx += D) {
    auto [mean, scale] = moments(D, x, eps);
    float mean_g = 0, mean_gu = 0;
#pragma omp simd reduction(+ : mean_g, mean_gu)
    for (int j = 0; j < D; ++j) {
      float u = (x[j] - mean) * scale, g = weight[j] * dy[j];
      mean_g += g;
      mean_gu += g * u;
      dweight[j] += dy[j] * u;
      dbias[j] += dy[j];
    }
    mean_g /= D;
    mean_gu /= D;
#pragma GCC ivdep
    for (int j = 0; j < D; ++j)
      dx[j] = scale * (weight[j] * dy[j] - mean_g - (x[j] - mean) * scale * mean_gu);
  }
}

void check_shapes(const mx::array& x, const Arrays& parameters) {
  require(x.ndim() >= 1 && x.shape(-1) > 0, "layer_norm: x is [..., D]");
  for (auto& p : parameters) {
    bool fits = p.ndim() >= 1 && p.ndim() <= x.ndim() && p.shape(-1) == x.shape(-1) &&
                p.shape() == parameters[0].shape() &&
                std::equal(p.shape().begin(), p.shape().end() - 1, x.shape().begin());
    require(fits, "layer_norm: weight and bias are [D], with the mapped axes of x before");
  }
}

// Weights [..., D] with the axes of length 1 that let them multiply x.
mx::array spread(const mx::array& weight, const mx::array& x, mx::Stream s) {
  std::vector<int> axes;
  for (size_t i = weight.ndim() - 1; i + 1 < x.ndim(); ++i) axes.push_back(i);
  return mx::expand_dims(weight, axes, s);
}

}  // namespace

std::vector<mx::Shape> LayerNorm::output_shapes(const Arrays& inputs) {
  check_shapes(inputs[0], {inputs[1], inputs[2]});
  return {inputs[0].shape()};
}

Work LayerNorm::work(const Arrays& inputs, Arrays& outputs) {
  return [sizes = Sizes(inputs[0], inputs[1]), in = data_of(inputs), y = outputs[0].data<float>(),
          eps = options] {
    size_t D = sizes.D, N = sizes.groups * sizes.rows;
    split(N, N * D, [&](size_t first, size_t last) {
      while (first < last) {  // the thread's rows, one group at a time
        size_t group = first / sizes.rows, end = std::min(last, (group + 1) * sizes.rows);
        forward(end - first, D, eps, in[0] + first * D, in[1] + group * D, in[2] + group * D,
                y + first * D);
        first = end;
      }
    });
  };
}

Arrays LayerNorm::vjp(const Arrays& primals, const Arrays& cotangents,
                      const std::vector<int>& argnums, const Arrays&) {
  auto gradient =
      LayerNormGradient::make({primals[0], primals[1], cotangents[0]}, options, stream());
  return asked(primals, argnums, gradient);
}

std::pair<Arrays, std::vector<int>> LayerNorm::vmap(const Arrays& inputs,
                                                    const std::vector<int>& axes) {
  bool shared = axes[1] < 0 && axes[2] < 0 && inputs[1].ndim() == 1;
  if (!shared) return {make(mapped_first(inputs, axes), options, stream()), {0}};
  auto x = mx::moveaxis(inputs[0], axes[0], 0, stream());
  return {make({x, inputs[1], inputs[2]}, options, stream()), {0}};
}

Arrays LayerNorm::composed(const Arrays& inputs, float eps, mx::Stream s) {
  auto& x = inputs[0];
  auto rest = mx::subtract(x, mx::mean(x, -1, true, s), s);
  auto variance = mx::mean(mx::square(rest, s), -1, true, s);
  auto y = mx::multiply(rest, mx::rsqrt(mx::add(variance, mx::array(eps), s), s), s);
  return {mx::add(mx::multiply(y, spread(inputs[1], x, s), s), spread(inputs[2], x, s), s)};
}

std::vector<mx::Shape> LayerNormGradient::output_shapes(const Arrays& inputs) {
  check_shapes(inputs[0], {inputs[1]});
  require(inputs[2].shape() == inputs[0].shape(), "layer_norm: x and its gradient differ in shape");
  return {inputs[0].shape(), inputs[1].shape(), inputs[1].shape()};
}

Work LayerNormGradient::work(const Arrays& inputs, Arrays& outputs) {
  return [sizes = Sizes(inputs[0], inputs[1]), in = data_of(inputs), out = data_of(outputs),
          eps = options] {
    size_t D = sizes.D, blocks = (sizes.rows + kRows - 1) / kRows;  // per group
    std::vector<float> sums(sizes.groups * blocks * 2 * D);
    split(sizes.groups * blocks, sizes.groups * sizes.rows * D, [&](size_t first, size_t last) {
      for (size_t block = first; block < last; ++block) {
        size_t group = block / blocks, row = block % blocks * kRows;
        size_t o = (group * sizes.rows + row) * D, rows = std::min(kRows, sizes.rows - row);
        float* sum = sums.data() + block * 2 * D;
        backward(rows, D, eps, in[0] + o, in[1] + group * D, in[2] + o, out[0] + o, sum, sum + D);
      }
    });
    for (size_t group = 0; group < sizes.groups; ++group)
      for (int part = 0; part < 2; ++part) {
        float* total = out[1 + part] + group * D;
        std::fill_n(total, D, 0.0f);
        for (size_t block = group * blocks; block < (group + 1) * blocks; ++block)
          for (size_t j = 0; j < D; ++j) total[j] += sums[(block * 2 + part) * D + j];
      }
  };
}

std::pair<Arrays, std::vector<int>> LayerNormGradient::vmap(const Arrays& inputs,
                                                            const std::vector<int>& axes) {
  return {make(mapped_first(inputs, axes), options, stream()), {0, 0, 0}};
}

Arrays LayerNormGradient::composed(const Arrays& inputs, float eps, mx::Stream s) {
  auto norm = [=](const Arrays& varying) { return LayerNorm::composed(varying, eps, s); };
  auto bias = mx::zeros_like(inputs[1], s);
  return mx::vjp(norm, {inputs[0], inputs[1], bias}, {inputs[2]}).second;
}

}  // namespace gateloop
