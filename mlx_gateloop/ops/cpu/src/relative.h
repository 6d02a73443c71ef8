// Softmax attention with relative positions (paper, section 3.4): over m <= n
//   y_n = sum_m softmax_m(Re(q_n k_m a_{m+1} ... a_n)) v_m.
#pragma once

#include "primitive.h"
#include "relative_kernels.h"

namespace gateloop {

struct RelativeOptions {
  int parts;  // 0 if a = 1, 1 if it is real and positive, else 2
  bool has_mask;
  bool operator==(const RelativeOptions&) const = default;
};

// Inputs: q [B, H, N, K] of the last N of T tokens; keys, log |a|, arg a [B, H, T, K + parts A],
// where A is K or 1; v [B, H, T, V]; mask [B, H or 1, N, T] if there is one. Output: y.
class Relative : public CpuPrimitive<Relative, RelativeOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopRelative";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  static Arrays composed(const Arrays& inputs, RelativeOptions options, mx::Stream stream);
};

// Inputs: those of Relative, then the gradient of y. Outputs: those of q, keys and v.
class RelativeGradient : public CpuPrimitive<RelativeGradient, RelativeOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopRelativeGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  static Arrays composed(const Arrays& inputs, RelativeOptions options, mx::Stream stream);
};

}  // namespace gateloop
