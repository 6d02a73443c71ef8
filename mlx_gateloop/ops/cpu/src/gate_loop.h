// The max-headed GateLoop operator with fused gates (paper, eq. 7 and 8):
//   h_n = a_n h_{n-1} + k_n v_n,   y_n = Re(q_n h_n),
// all of q k v a [B, L, D], float32, float16 or bfloat16 each; the state [B, planes of a, D] and
// all arithmetic are float32.
#pragma once

#include "gates.h"
#include "primitive.h"

namespace gateloop {

struct GateLoopOptions {
  Form form;
  bool complex_a, has_h0, has_mask, reverse;
  bool operator==(const GateLoopOptions&) const = default;
  // Planes of a and of the states: real, and imaginary if a is complex.
  int planes() const { return 1 + complex_a; }
  // Positions of the optional inputs.
  int second() const { return 4; }
  int h0() const { return complex_a ? 5 : 4; }
  int mask() const { return h0() + has_h0; }
  int end() const { return mask() + has_mask; }
};

inline OperatorInputs inputs_of(const Arrays& in, const GateLoopOptions& o) {
  return {.L = in[0].shape(1),
          .form = o.form,
          .reverse = o.reverse,
          .q = source_of(in[0]),
          .k = source_of(in[1]),
          .v = source_of(in[2]),
          .first = source_of(in[3]),
          .second = o.complex_a ? source_of(in[o.second()]) : Source{},
          .h0 = o.has_h0 ? in[o.h0()].data<float>() : nullptr,
          .mask = o.has_mask ? in[o.mask()].data<bool>() : nullptr};
}

// The gradients of q, k, v, first and second have their types; that of h0 is float32.
inline std::vector<mx::Dtype> dtypes_of_gradients(const Arrays& in, const GateLoopOptions& o) {
  std::vector<mx::Dtype> dtypes;
  for (int i = 0; i < o.h0(); ++i) dtypes.push_back(in[i].dtype());
  return dtypes;
}

// The inputs of a gradient: those of the operator, the saved states, the gradients of y, in its
// type, and of the last state.
inline Arrays gradient_inputs(Arrays inputs, const Arrays& cotangents, const Arrays& outputs,
                              mx::Stream s) {
  inputs.insert(inputs.end(), {outputs[2], mx::astype(cotangents[0], outputs[0].dtype(), s),
                               mx::astype(cotangents[1], mx::float32, s)});
  return inputs;
}

inline OperatorGradients gradients_of(const Arrays& in, Arrays& out, const GateLoopOptions& o) {
  return {.saved = in[o.end()].data<float>(),
          .dlast = in[o.end() + 2].data<float>(),
          .dy = source_of(in[o.end() + 1]),
          .dq = sink_of(out[0]),
          .dk = sink_of(out[1]),
          .dv = sink_of(out[2]),
          .dfirst = sink_of(out[3]),
          .dsecond = o.complex_a ? sink_of(out[o.second()]) : Sink{},
          .dh0 = out[o.h0()].data<float>()};
}

// Inputs: q, k, v, first, second if a is complex, h0 and mask [B, L] if there are any.
// Outputs: y, of v's type; the last state; the states before every kChunk-th step, for the gradient
// to recompute the others.
class GateLoop : public CpuPrimitive<GateLoop, GateLoopOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoop";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<mx::Dtype> output_dtypes(const Arrays& inputs) { return {inputs[2].dtype()}; }
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  static Arrays composed(const Arrays& inputs, GateLoopOptions options, mx::Stream stream);
};

// Inputs: those of GateLoop, then the saved states, the gradients of y and of the last state.
// Outputs: the gradients of q, k, v, first, second if a is complex, and h0.
class GateLoopGradient : public CpuPrimitive<GateLoopGradient, GateLoopOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<mx::Dtype> output_dtypes(const Arrays& inputs) {
    return dtypes_of_gradients(inputs, options);
  }
  void allocate(const Arrays& inputs, Arrays& outputs);
  Work work(const Arrays& inputs, Arrays& outputs);
  static Arrays composed(const Arrays& inputs, GateLoopOptions options, mx::Stream stream);
};

// The gradients that GateLoopGradient::composed returns, of `operator_` from these inputs, options
// and stream to y, the last state and others; `zero` is the state without h0.
template <class Operator>
Arrays composed_gradient(const Operator& operator_, const Arrays& in, GateLoopOptions o,
                         const mx::array& zero, mx::Stream s) {
  int dy = o.end() + 1;
  Arrays primals(in.begin(), in.begin() + o.h0());
  primals.push_back(o.has_h0 ? in[o.h0()] : zero);
  auto with_h0 = o;
  with_h0.has_h0 = true;
  auto outputs = [&](const Arrays& varying) {
    auto all = varying;
    if (o.has_mask) all.push_back(in[o.mask()]);
    auto results = operator_(all, with_h0, s);
    return Arrays{results[0], results[1]};
  };
  return mx::vjp(outputs, primals, {in[dy], in[dy + 1]}).second;
}

}  // namespace gateloop
