// The max-headed GateLoop operator with fused gates (paper, eq. 7 and 8):
//   h_n = a_n h_{n-1} + k_n v_n,   y_n = Re(q_n h_n),   float32, all of q k v a [B, L, D], the
//   state
// [B, planes of a, D].
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
  auto data = [&](bool present, int i) { return present ? in[i].data<float>() : nullptr; };
  return {.L = in[0].shape(1),
          .form = o.form,
          .reverse = o.reverse,
          .q = data(true, 0),
          .k = data(true, 1),
          .v = data(true, 2),
          .first = data(true, 3),
          .second = data(o.complex_a, o.second()),
          .h0 = data(o.has_h0, o.h0()),
          .mask = o.has_mask ? in[o.mask()].data<bool>() : nullptr};
}

// Inputs: q, k, v, first, second if a is complex, h0 and mask [B, L] if there are any.
// Outputs: y; the last state; the states before every kChunk-th step, for the gradient to recompute
// the others.
class GateLoop : public CpuPrimitive<GateLoop, GateLoopOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoop";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
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
