// Activation functions and their gradients, arrays of float32, float16 or bfloat16 and any shape.
#pragma once

#include "primitive.h"

namespace gateloop {

// gelu is exact, x Phi(x); silu is x sigmoid(x).
enum class Activation { gelu, silu, sigmoid };

// Input: x. Output: the activation.
class Pointwise : public CpuPrimitive<Pointwise, Activation> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopPointwise";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<mx::Dtype> output_dtypes(const Arrays& inputs) { return {inputs[0].dtype()}; }
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays jvp(const Arrays&, const Arrays&, const std::vector<int>&) override;
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, Activation function, mx::Stream stream);
};

// Inputs: x and a gradient or tangent. Output: the derivative at x times that.
class PointwiseGradient : public CpuPrimitive<PointwiseGradient, Activation> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopPointwiseGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  std::vector<mx::Dtype> output_dtypes(const Arrays& inputs) { return {inputs[0].dtype()}; }
  Work work(const Arrays& inputs, Arrays& outputs);
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, Activation function, mx::Stream stream);
};

}  // namespace gateloop
