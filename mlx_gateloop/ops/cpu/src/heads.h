// The GateLoop operator with heads and fused gates (paper, eq. 7 and 8):
//   h_n = a_n h_{n-1} + k_n^T v_n,   y_n = Re(q_n h_n),
// q and k [B, L, H, K], v [B, L, H, V], a [B, L, H, K] or [B, L, H, 1]. Types as in
// gate_loop.h; the state is [B, planes of a, H, K, V].
#pragma once

#include "gate_loop.h"

namespace gateloop {

// Inputs: q, k, v, first, second if a is complex, h0 and mask [B, L] if there are any.
// Outputs: y; the last state; the states before all chunks but the first, for the gradient.
class Heads : public CpuPrimitive<Heads, GateLoopOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopHeads";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<mx::Dtype> output_dtypes(const Arrays& inputs) { return {inputs[2].dtype()}; }
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  static Arrays composed(const Arrays& inputs, GateLoopOptions options, mx::Stream stream);
};

// Inputs: those of Heads, then the saved states, the gradients of y and of the last state.
// Outputs: the gradients of q, k, v, first, second if a is complex, and h0.
class HeadsGradient : public CpuPrimitive<HeadsGradient, GateLoopOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopHeadsGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<mx::Dtype> output_dtypes(const Arrays& inputs) {
    return dtypes_of_gradients(inputs, options);
  }
  Work work(const Arrays& inputs, Arrays& outputs);
  static Arrays composed(const Arrays& inputs, GateLoopOptions options, mx::Stream stream);
};

}  // namespace gateloop
