#include "cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "parallel.h"
#include "vector_math.h"

namespace gateloop {

namespace {

constexpr int PART = 128;

GATELOOP_MULTIVERSION float log_sum_exp(int V, const float* x) {
  float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
  for (int i = 0; i < V; ++i) most = x[i] > most ? x[i] : most;
  if (!std::isfinite(most)) most = 0;  // all -inf, or an infinity: the sum tells them apart
  double sum = 0;                      // of parts: the rounding of one float would grow with V
  for (int begin = 0; begin < V; begin += PART) {
    float part = 0;
    const int end = std::min(V, begin + PART);
#pragma omp simd reduction(+ : part)
    for (int i = begin; i < end; ++i) part += expf(x[i] - most);
    sum += part;
  }
  return most + static_cast<float>(std::log(sum));
}

// softmax(x) times scale.
GATELOOP_MULTIVERSION void gradient(int V, const float* x, float log_sum, float scale, float* dx) {
#pragma GCC ivdep
  for (int i = 0; i < V; ++i) dx[i] = scale * expf(x[i] - log_sum);
}

bool valid(int64_t target, int V) { return target >= 0 && target < V; }

// The targets as one-hot vectors of the logits' shape.
mx::array one_hot(const mx::array& targets, int V, mx::Stream s) {
  auto classes = mx::arange(0, V, 1, targets.dtype(), s);
  return mx::astype(mx::equal(mx::expand_dims(targets, -1, s), classes, s), mx::float32, s);
}

void check_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  require(!shape.empty(), "cross_entropy: logits are [..., V]");
  shape.pop_back();
  for (size_t i = 1; i < inputs.size(); ++i)
    require(inputs[i].shape() == shape, "cross_entropy: logits are [..., V], and targets [...]");
}

}  // namespace

std::vector<mx::Shape> CrossEntropy::output_shapes(const Arrays& inputs) {
  check_shapes(inputs);
  return {inputs[1].shape(), inputs[1].shape()};
}

Work CrossEntropy::work(const Arrays& inputs, Arrays& outputs) {
  return [N = inputs[1].size(), V = inputs[0].shape(-1), x = inputs[0].data<float>(),
          targets = inputs[1].data<int64_t>(), loss = outputs[0].data<float>(),
          log_sum = outputs[1].data<float>()] {
    split(N, N * V, [&](size_t first, size_t last) {
      for (size_t n = first; n < last; ++n) {
        log_sum[n] = log_sum_exp(V, x + n * V);
        loss[n] = valid(targets[n], V) ? log_sum[n] - x[n * V + targets[n]] : NAN;
      }
    });
  };
}

Arrays CrossEntropy::vjp(const Arrays& primals, const Arrays& cotangents,
                         const std::vector<int>& argnums, const Arrays& outputs) {
  auto gradient =
      CrossEntropyGradient::make({primals[0], primals[1], outputs[1], cotangents[0]}, {}, stream());
  return asked(primals, argnums, {gradient[0], primals[1]});
}

std::pair<Arrays, std::vector<int>> CrossEntropy::vmap(const Arrays& inputs,
                                                       const std::vector<int>& axes) {
  return {make(mapped_first(inputs, axes), options, stream()), {0, 0}};
}

Arrays CrossEntropy::composed(const Arrays& inputs, NoOptions, mx::Stream s) {
  auto log_sum = mx::logsumexp(inputs[0], -1, false, s);
  auto picked = mx::multiply(inputs[0], one_hot(inputs[1], inputs[0].shape(-1), s), s);
  return {mx::subtract(log_sum, mx::sum(picked, -1, false, s), s), log_sum};
}

std::vector<mx::Shape> CrossEntropyGradient::output_shapes(const Arrays& inputs) {
  check_shapes(inputs);
  return {inputs[0].shape()};
}

Work CrossEntropyGradient::work(const Arrays& inputs, Arrays& outputs) {
  return [N = inputs[1].size(), V = inputs[0].shape(-1), x = inputs[0].data<float>(),
          targets = inputs[1].data<int64_t>(), log_sum = inputs[2].data<float>(),
          dloss = inputs[3].data<float>(), dx = outputs[0].data<float>()] {
    split(N, N * V, [&](size_t first, size_t last) {
      for (size_t n = first; n < last; ++n) {
        bool good = valid(targets[n], V);
        gradient(V, x + n * V, log_sum[n], good ? dloss[n] : NAN, dx + n * V);
        if (good) dx[n * V + targets[n]] -= dloss[n];
      }
    });
  };
}

std::pair<Arrays, std::vector<int>> CrossEntropyGradient::vmap(const Arrays& inputs,
                                                               const std::vector<int>& axes) {
  return {make(mapped_first(inputs, axes), options, stream()), {0}};
}

Arrays CrossEntropyGradient::composed(const Arrays& inputs, NoOptions, mx::Stream s) {
  // softmax of the logits themselves: inputs[2] depends on them too
  auto softmax = mx::softmax(inputs[0], std::vector<int>{-1}, false, s);
  auto rest = mx::subtract(softmax, one_hot(inputs[1], inputs[0].shape(-1), s), s);
  return {mx::multiply(rest, mx::expand_dims(inputs[3], -1, s), s)};
}

}  // namespace gateloop
