// The max-headed GateLoop operator with fused gates (paper, eq. 7 and 8):
//   h_n = a_n h_{n-1} + k_n v_n,   y_n = Re(q_n h_n),   float32, all of q k v a [B, L, D].
#pragma once

#include "primitive.h"

namespace gateloop {

// a from `first` and `second`: sigmoid(gamma) exp(i theta), exp(log|a| + i arg a), re + i im.
enum class Form { sigmoid, polar, cartesian };

struct GateLoopOptions {
  Form form;
  bool complex_a, has_h0, has_mask, reverse;
  bool operator==(const GateLoopOptions&) const = default;
  // Positions of the optional inputs. The state is always [B, 2, D], real plane first.
  int second() const { return 4; }
  int h0() const { return complex_a ? 5 : 4; }
  int mask() const { return h0() + has_h0; }
  int end() const { return mask() + has_mask; }
};

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

}  // namespace gateloop
