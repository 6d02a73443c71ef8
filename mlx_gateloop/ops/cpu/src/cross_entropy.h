// Softmax cross-entropy over a vocabulary. Only the gradient needs memory of the logits' size.
#pragma once

#include "primitive.h"

namespace gateloop {

struct NoOptions {
  bool operator==(const NoOptions&) const = default;
};

// Inputs: logits [..., V] float32 and targets [...] int64. Outputs [...]: log sum exp(logits) minus
// the target's logit, and log sum exp(logits) for the gradient. A target outside 0..V-1 gives NaN.
class CrossEntropy : public CpuPrimitive<CrossEntropy, NoOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopCrossEntropy";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, NoOptions, mx::Stream stream);
};

// Inputs: logits, targets, log sum exp, and the gradient of the loss. Output: that of the logits.
class CrossEntropyGradient : public CpuPrimitive<CrossEntropyGradient, NoOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopCrossEntropyGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, NoOptions, mx::Stream stream);
};

}  // namespace gateloop
