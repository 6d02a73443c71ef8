#include "linear.h"

#include "parallel.h"
#include "products.h"
#include "vector_math.h"

namespace gateloop {

namespace {

constexpr size_t kRows = 4;         // rows of weights converted to float32 at once
constexpr size_t kThreadWork = 64;  // weights to read for each element that is worth a thread

struct Layer {
  Source weights;
  const uint8_t* quantized = nullptr;
  const float *scales = nullptr, *zeros = nullptr, *bias = nullptr;
  float* y = nullptr;
  size_t outputs = 0;
  int group = 0;

  size_t blocks() const { return (outputs + kRows - 1) / kRows; }
};

GATELOOP_MULTIVERSION void expand(size_t groups, int group, const uint8_t* x, const float* scales,
                                  const float* zeros, float* y) {
  for (size_t g = 0; g < groups; ++g, x += group, y += group) {
    float scale = scales[g], zero = zeros[g];
#pragma GCC ivdep
    for (int j = 0; j < group; ++j) y[j] = float(int(x[j])) * scale + zero;
  }
}

using Four = Registers<4>::Vector;

// Four sums of a vector's floats.
GATELOOP_INLINE void narrow(const Four& x, Four& y) { y = x; }
GATELOOP_INLINE void narrow(const Registers<8>::Vector& x, Four& y) {
  y = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
}
GATELOOP_INLINE void narrow(const Registers<16>::Vector& x, Four& y) {
  Registers<8>::Vector half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                              __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  narrow(half, y);
}

// Sums of the pairs of neighbours in a, then in b.
GATELOOP_INLINE void fold(const Four& a, const Four& b, Four& y) {
  y = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
}

// y = x w' for C rows of x and kRows of w; each of the sums is the same for any C.
template <int LANES, int C>
GATELOOP_INLINE void tile(size_t rows, int D, const float* x, const float* w, float* y,
                          size_t stride) {
  using Unaligned = typename Registers<LANES>::Unaligned;
  typename Registers<LANES>::Vector sums[C][kRows] = {};
  for (int j = 0; j < D; j += LANES)
    for (size_t r = 0; r < kRows; ++r) {
      auto row = *(const Unaligned*)(w + r * D + j);
      for (int c = 0; c < C; ++c) sums[c][r] += row * *(const Unaligned*)(x + c * D + j);
    }
  for (auto& s : sums) {
    Four t[kRows];
    for (size_t r = 0; r < kRows; ++r) narrow(s[r], t[r]);
    fold(t[0], t[1], t[0]);
    fold(t[2], t[3], t[2]);
    fold(t[0], t[2], t[0]);
    for (size_t r = 0; r < rows; ++r) y[r] = t[0][r];
    y += stride;
  }
}

// y = x w' for N rows of x and the kRows in w, of which `rows` are written.
GATELOOP_MULTIVERSION void dots(size_t N, size_t rows, int D, const float* x, const float* w,
                                float* y, size_t stride) {
  size_t n = 0;
  auto tiles = [&]<int LANES, int C>() __attribute__((always_inline)) {
    for (; n + C <= N; n += C) tile<LANES, C>(rows, D, x + n * D, w, y + n * stride, stride);
  };
  switch (lanes()) {
    case 16:
      tiles.operator()<16, 4>();
      tiles.operator()<16, 2>();
      return tiles.operator()<16, 1>();
    case 8: tiles.operator()<8, 2>(); return tiles.operator()<8, 1>();
    default: tiles.operator()<4, 2>(); return tiles.operator()<4, 1>();
  }
}

// The outputs of a block of rows, for N rows of x.
void multiply(const Layer& layer, size_t block, size_t N, int D, const float* x, float* buffer) {
  size_t first = block * kRows, count = std::min(kRows, layer.outputs - first);
  if (layer.quantized) {
    size_t groups = D / layer.group, o = first * groups;
    expand(count * groups, layer.group, layer.quantized + first * D, layer.scales + o,
           layer.zeros + o, buffer);
  } else {  // copied, because the processor prefetches one row faster than four
    layer.weights.copy(first * D, int(count * D), buffer);
  }
  float* y = layer.y + first;
  dots(N, count, D, x, buffer, y, layer.outputs);
  for (size_t n = 0; layer.bias && n < N; ++n, y += layer.outputs)
    for (size_t r = 0; r < count; ++r) y[r] += layer.bias[first + r];
}

}  // namespace

std::vector<mx::Shape> Linear::output_shapes(const Arrays& inputs) {
  const char* expected = "linear: each W is [O, D], scales and zeros [O, groups]";
  int D = inputs[0].ndim() ? inputs[0].shape(-1) : 0;
  require(D > 0 && D % kLanes == 0, "linear: x is [..., D], whole vectors");
  std::vector<mx::Shape> shapes;
  auto next = inputs.begin() + 1;
  for (auto [quantized, has_bias] : options) {
    auto& w = *next++;
    require(w.ndim() == 2 && w.shape(1) * (quantized ? 4 : 1) == D, expected);
    shapes.push_back(inputs[0].shape());
    shapes.back().back() = w.shape(0);
    if (quantized) {
      auto &scales = *next++, &zeros = *next++;
      bool fits = scales.ndim() == 2 && scales.shape(0) == w.shape(0) && scales.shape(1) > 0 &&
                  D % scales.shape(1) == 0 && zeros.shape() == scales.shape();
      require(fits, expected);
    }
    if (has_bias) require((*next++).shape() == mx::Shape{w.shape(0)}, "linear: a bias is [O]");
  }
  return shapes;
}

Work Linear::work(const Arrays& inputs, Arrays& outputs) {
  std::vector<Layer> layers(outputs.size());
  int D = inputs[0].shape(-1);
  size_t i = 1, blocks = 0;
  for (size_t n = 0; n < layers.size(); ++n) {
    auto& layer = layers[n];
    auto& w = inputs[i++];
    layer.outputs = w.shape(0);
    layer.y = outputs[n].data<float>();
    blocks += layer.blocks();
    if (options[n].quantized) {
      layer.quantized = w.data<uint8_t>();
      layer.group = D / inputs[i].shape(1);
      layer.scales = inputs[i++].data<float>();
      layer.zeros = inputs[i++].data<float>();
    } else {
      layer.weights = source_of(w);
    }
    if (options[n].has_bias) layer.bias = inputs[i++].data<float>();
  }
  return [=, x = inputs[0].data<float>(), N = inputs[0].size() / D] {
    split(blocks, blocks * kRows * D / kThreadWork, [&](size_t first, size_t last) {
      std::vector<float> buffer(kRows * D);
      size_t before = 0;  // blocks of the layers so far
      for (auto& layer : layers) {
        size_t end = before + layer.blocks();
        for (size_t i = std::max(first, before); i < std::min(last, end); ++i)
          multiply(layer, i - before, N, D, x, buffer.data());
        before = end;
      }
    });
  };
}

std::pair<Arrays, std::vector<int>> Linear::vmap(const Arrays& inputs,
                                                 const std::vector<int>& axes) {
  std::vector<int> first(options.size(), 0);
  bool shared = axes[0] >= 0;
  for (size_t i = 1; i < axes.size(); ++i) shared = shared && axes[i] < 0;
  if (!shared) {
    auto function = [options = options, s = stream()](const Arrays& each) {
      return composed(each, options, s);
    };
    return {mx::vmap(function, axes, first)(inputs), first};
  }
  Arrays moved = inputs;
  moved[0] = mx::moveaxis(moved[0], axes[0], 0, stream());
  return {make(moved, options, stream()), first};
}

Arrays Linear::composed(const Arrays& inputs, const std::vector<LinearParts>& layers,
                        mx::Stream s) {
  Arrays outputs;
  auto next = inputs.begin() + 1;
  for (auto [quantized, has_bias] : layers) {
    auto w = *next++;
    if (quantized) {
      auto &scales = *next++, &zeros = *next++;
      w = mx::dequantize(w, scales, zeros, w.shape(1) * 4 / scales.shape(1), 8, "affine",
                         std::nullopt, std::nullopt, s);
    }
    auto y = mx::matmul(inputs[0], mx::transpose(mx::astype(w, mx::float32, s), s), s);
    outputs.push_back(has_bias ? mx::add(y, *next++, s) : y);
  }
  return outputs;
}

}  // namespace gateloop
