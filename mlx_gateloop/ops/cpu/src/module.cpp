// Python bindings of the extension `mlx_gateloop.ops.cpu._ext`. The package has checked its
// arguments; the checks here, and of shapes in the primitives, only prevent invalid memory access.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "cross_entropy.h"
#include "gate_loop.h"
#include "heads.h"
#include "layer_norm.h"
#include "linear.h"
#include "linear_scan.h"
#include "pointwise.h"
#include "products.h"
#include "relative.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gateloop {
namespace {

void require_float32(const Arrays& arrays, const char* expected) {
  for (auto& x : arrays) require(x.dtype() == mx::float32, expected);
}

mx::Stream stream() { return mx::default_stream(mx::Device::cpu); }

Arrays checked_scan(const Arrays& a, const Arrays& x, const Arrays& h0, bool reverse) {
  auto one_or_two = [](const Arrays& planes) { return planes.size() == 1 || planes.size() == 2; };
  require(one_or_two(a) && one_or_two(x), "linear_scan: a and x have one or two planes");
  require(h0.empty() || h0.size() == std::max(a.size(), x.size()),
          "linear_scan: h0 has the planes of the result, or none");
  for (auto* planes : {&a, &x, &h0}) require_float32(*planes, "linear_scan: planes are float32");
  return linear_scan(a, x, h0, reverse);
}

template <class Operator>
std::pair<mx::array, mx::array> checked_gate_loop(const mx::array& q, const mx::array& k,
                                                  const mx::array& v, const mx::array& first,
                                                  const std::optional<mx::array>& second,
                                                  const std::optional<mx::array>& h0,
                                                  const std::optional<mx::array>& mask, int form,
                                                  bool reverse) {
  require(form >= 0 && form <= 2, "gate_loop: form is 0 sigmoid, 1 polar or 2 cartesian");
  Arrays inputs{q, k, v, first};
  if (second) inputs.push_back(*second);
  for (auto& x : inputs)
    require(has_rows(x), "gate_loop: q, k, v and a are float32, float16 or bfloat16");
  if (h0) {
    require_float32({*h0}, "gate_loop: h0 is float32");
    inputs.push_back(*h0);
  }
  require(!mask || mask->dtype() == mx::bool_, "gate_loop: mask is bool");
  if (mask) inputs.push_back(*mask);
  GateLoopOptions options{Form(form), second.has_value(), h0.has_value(), mask.has_value(),
                          reverse};
  auto outputs = Operator::make(inputs, options, stream());
  return {outputs[0], outputs[1]};
}

template <Activation F>
mx::array checked_pointwise(const mx::array& x) {
  require(has_rows(x), "x is float32, float16 or bfloat16");
  return Pointwise::make({x}, F, stream())[0];
}

mx::array checked_layer_norm(const mx::array& x, const mx::array& weight, const mx::array& bias,
                             float eps) {
  require_float32({x, weight, bias}, "layer_norm: x, weight and bias are float32");
  return LayerNorm::make({x, weight, bias}, eps, stream())[0];
}

using Maybe = std::optional<mx::array>;

// Nothing if MLX has to compute it: for other types or sizes.
std::optional<Arrays> linear(
    const mx::array& x, const std::vector<std::tuple<mx::array, Maybe, Maybe, Maybe>>& layers) {
  Arrays inputs{x};
  std::vector<LinearParts> parts;
  auto is_float32 = [](const Maybe& part) { return !part || part->dtype() == mx::float32; };
  bool fits = is_float32(x) && x.ndim() > 0 && x.shape(-1) > 0 && x.shape(-1) % kLanes == 0;
  for (auto& [w, scales, zeros, bias] : layers) {
    bool is_8_bit = scales && zeros && w.dtype() == mx::uint32 && 4 * w.shape(-1) == x.shape(-1);
    fits = fits && (is_8_bit || (!scales && has_rows(w))) && is_float32(scales) &&
           is_float32(zeros) && is_float32(bias);
    parts.push_back({scales.has_value(), bias.has_value()});
    inputs.push_back(w);
    for (auto* part : {&scales, &zeros, &bias})
      if (*part) inputs.push_back(**part);
  }
  if (!fits) return std::nullopt;
  return Linear::make(inputs, parts, stream());
}

mx::array checked_cross_entropy(const mx::array& logits, const mx::array& targets) {
  require_float32({logits}, "cross_entropy: logits are float32");
  require(targets.dtype() == mx::int64, "cross_entropy: targets are int64");
  return CrossEntropy::make({logits, targets}, {}, stream())[0];
}

mx::array checked_relative(const mx::array& q, const mx::array& keys, const mx::array& v,
                           const std::optional<mx::array>& mask, int parts) {
  require_float32({q, keys, v}, "relative_attention: q, keys and v are float32");
  require(parts >= 0 && parts <= 2, "relative_attention: parts are 0, 1 or 2");
  require(!mask || mask->dtype() == mx::bool_, "relative_attention: mask is bool");
  Arrays inputs{q, keys, v};
  if (mask) inputs.push_back(*mask);
  return Relative::make(inputs, {parts, mask.has_value()}, stream())[0];
}

}  // namespace
}  // namespace gateloop

NB_MODULE(_ext, m) {
  m.doc() = "CPU primitives of mlx_gateloop.";
  m.def("linear_scan", &gateloop::checked_scan, "a"_a, "x"_a, "h0"_a, nb::kw_only(),
        "reverse"_a = false, "Planes of h_n = a_n h_{n-1} + x_n along axis 1 of [B, L, D].");
  m.def("gate_loop", &gateloop::checked_gate_loop<gateloop::GateLoop>, "q"_a, "k"_a, "v"_a,
        "first"_a, "second"_a.none(), "h0"_a.none(), "mask"_a.none(), nb::kw_only(), "form"_a,
        "reverse"_a, "y and the last state [B, planes of a, D] of the max-headed operator.");
  m.def("gate_loop_heads", &gateloop::checked_gate_loop<gateloop::Heads>, "q"_a, "k"_a, "v"_a,
        "first"_a, "second"_a.none(), "h0"_a.none(), "mask"_a.none(), nb::kw_only(), "form"_a,
        "reverse"_a, "y and the last state [B, planes of a, H, K, V] of the operator with heads.");
  using gateloop::Activation;
  m.def("gelu", &gateloop::checked_pointwise<Activation::gelu>, "x"_a, "x Phi(x)");
  m.def("silu", &gateloop::checked_pointwise<Activation::silu>, "x"_a, "x sigmoid(x)");
  m.def("sigmoid", &gateloop::checked_pointwise<Activation::sigmoid>, "x"_a, "1 / (1 + exp(-x))");
  m.def("layer_norm", &gateloop::checked_layer_norm, "x"_a, "weight"_a, "bias"_a, "eps"_a,
        "Each row of x [..., D] less its mean, over its deviation, times weight, plus bias.");
  m.def("linear", &gateloop::linear, "x"_a, "layers"_a,
        "x W' + bias of each layer (W, scales, zeros, bias), all for one x [..., D], or None.");
  m.def("cross_entropy", &gateloop::checked_cross_entropy, "logits"_a, "targets"_a,
        "Losses [...] of logits [..., V].");
  m.def("relative_attention", &gateloop::checked_relative, "q"_a, "keys"_a, "v"_a,
        "mask"_a.none() = nb::none(), nb::kw_only(), "parts"_a,
        "Softmax attention of q [B, H, N, K] with transitions as relative positions.");
}
