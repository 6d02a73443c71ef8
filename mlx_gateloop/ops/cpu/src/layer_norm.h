// Layer normalization over the last axis: y = (x - mean) / sqrt(variance + eps) weight + bias.
#pragma once

#include "primitive.h"

namespace gateloop {

// Inputs: x [..., D], weight and bias [D]. Output: y. The option is eps. Under vmap the weights get
// the mapped axes, which are the first of x; in the gradient they always do.
class LayerNorm : public CpuPrimitive<LayerNorm, float> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopLayerNorm";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, float eps, mx::Stream stream);
};

// Inputs: x, weight, and the gradient of y. Outputs: those of x, weight and bias.
class LayerNormGradient : public CpuPrimitive<LayerNormGradient, float> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopLayerNormGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, float eps, mx::Stream stream);
};

}  // namespace gateloop
