#include "relative.h"

#include <limits>

#include "parallel.h"

namespace gateloop {

namespace {

RelativeSizes sizes_of(const Arrays& in, const RelativeOptions& o) {
  int K = in[0].shape(3), A = o.parts ? (in[1].shape(3) - K) / o.parts : 0;
  return {in[0].shape(2), in[1].shape(2), K, A, in[2].shape(3), o.parts};
}

void check_shapes(const Arrays& in, const RelativeOptions& o) {
  auto &q = in[0], &keys = in[1], &v = in[2];
  require(q.ndim() == 4 && keys.ndim() == 4 && v.ndim() == 4,
          "relative_attention: q is [B, H, N, K], keys [B, H, T, K + parts A], v [B, H, T, V]");
  auto s = sizes_of(in, o);
  int B = q.shape(0), H = q.shape(1);
  bool fits = s.N <= s.T && s.width() == keys.shape(3) && (!o.parts || s.A == 1 || s.A == s.K);
  require(
      fits && keys.shape() == mx::Shape{B, H, s.T, keys.shape(3)} &&
          v.shape() == mx::Shape{B, H, s.T, s.V},
      "relative_attention: keys are [B, H, T, K + parts A], A = 1 or K, v [B, H, T, V], N <= T");
  require(!o.has_mask || in[3].shape() == mx::Shape{B, 1, s.N, s.T} ||
              in[3].shape() == mx::Shape{B, H, s.N, s.T},
          "relative_attention: mask is [B, H or 1, N, T]");
}

// Calls `part(head, rows, i)` for the heads i of all batches.
template <class Part>
Work over_heads(const Arrays& in, const RelativeOptions& o, const Part& part) {
  int H = in[0].shape(1), masks = o.has_mask ? in[3].shape(1) : 0;
  return [=, s = sizes_of(in, o), count = size_t(in[0].shape(0)) * H, q = in[0].data<float>(),
          keys = in[1].data<float>(), v = in[2].data<float>(),
          mask = o.has_mask ? in[3].data<bool>() : nullptr] {
    split(count, count * s.N * s.T * (s.K + s.V), [&](size_t first, size_t last) {
      RelativeHead head(s);
      for (size_t i = first; i < last; ++i) {
        size_t shared = masks == H ? i : i / H;
        RelativeRows rows{q + i * s.N * s.K, keys + i * s.T * s.width(), v + i * s.T * s.V,
                          mask ? mask + shared * s.N * s.T : nullptr};
        part(head, rows, i);
      }
    });
  };
}

}  // namespace

std::vector<mx::Shape> Relative::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options);
  auto shape = inputs[0].shape();
  shape[3] = inputs[2].shape(3);
  return {shape};
}

Work Relative::work(const Arrays& inputs, Arrays& outputs) {
  return over_heads(inputs, options,
                    [y = outputs[0].data<float>()](RelativeHead& head, auto& rows, size_t i) {
                      head.forward(rows, y + i * head.s.N * head.s.V);
                    });
}

Arrays Relative::vjp(const Arrays& primals, const Arrays& cotangents,
                     const std::vector<int>& argnums, const Arrays&) {
  auto inputs = primals;
  inputs.push_back(cotangents[0]);
  return asked(primals, argnums, RelativeGradient::make(inputs, options, stream()));
}

// With the decays of all pairs of tokens.
Arrays Relative::composed(const Arrays& in, RelativeOptions o, mx::Stream s) {
  auto [N, T, K, A, V, parts] = sizes_of(in, o);
  int B = in[0].shape(0), H = in[0].shape(1);
  auto columns = [&](int first, int count) {
    return mx::slice(in[1], {0, 0, 0, first}, {B, H, T, first + count}, s);
  };
  auto pairs = mx::multiply(mx::expand_dims(in[0], 3, s), mx::expand_dims(columns(0, K), 2, s), s);
  auto later = mx::expand_dims(mx::tri(T, T, -1, mx::bool_, s), 2, s);
  for (int part = 0; part < parts; ++part) {
    auto log = mx::expand_dims(columns(K + part * A, A), 3, s);
    auto sums = mx::cumsum(mx::where(later, log, mx::array(0.0f), s), 2, false, true, s);
    sums = mx::slice(sums, {0, 0, T - N, 0, 0}, {B, H, T, T, A}, s);
    pairs = mx::multiply(pairs, part ? mx::cos(sums, s) : mx::exp(sums, s), s);
  }
  auto scores = mx::sum(pairs, -1, false, s);
  auto seen = mx::tri(N, T, T - N, mx::bool_, s);
  if (o.has_mask) seen = mx::logical_and(seen, in[3], s);
  scores = mx::where(seen, scores, mx::array(std::numeric_limits<float>::lowest()), s);
  auto weights = mx::multiply(mx::softmax(scores, std::vector<int>{-1}, false, s),
                              mx::astype(seen, mx::float32, s), s);
  return {mx::matmul(weights, in[2], s)};
}

std::vector<mx::Shape> RelativeGradient::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options);
  auto shape = inputs[0].shape();
  shape[3] = inputs[2].shape(3);
  require(inputs.back().shape() == shape, "relative_attention: y's gradient is [B, H, N, V]");
  return {inputs[0].shape(), inputs[1].shape(), inputs[2].shape()};
}

Work RelativeGradient::work(const Arrays& inputs, Arrays& outputs) {
  return over_heads(inputs, options,
                    [dy = inputs.back().data<float>(), out = data_of(outputs)](
                        RelativeHead& head, auto& rows, size_t i) {
                      auto& s = head.s;
                      head.backward(rows, {dy + i * s.N * s.V, out[0] + i * s.N * s.K,
                                           out[1] + i * s.T * s.width(), out[2] + i * s.T * s.V});
                    });
}

Arrays RelativeGradient::composed(const Arrays& in, RelativeOptions o, mx::Stream s) {
  auto attend = [=](const Arrays& varying) {
    auto all = varying;
    if (o.has_mask) all.push_back(in[3]);
    return Relative::composed(all, o, s);
  };
  return mx::vjp(attend, {in[0], in[1], in[2]}, {in.back()}).second;
}

}  // namespace gateloop
