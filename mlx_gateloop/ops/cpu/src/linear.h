// Linear layers of few rows: bound by reading the weights, which stay as they are stored.
#pragma once

#include "primitive.h"

namespace gateloop {

// What follows the weights of a layer among the inputs.
struct LinearParts {
  bool quantized;  // scales and zeros [O, groups]; the weights are 8-bit, four in a uint32
  bool has_bias;   // [O]
  bool operator==(const LinearParts&) const = default;
};

// Inputs: x [..., D], and for each layer its weights [O, D] with the parts above; all but the
// weights is float32. Outputs: x W' + bias [..., O] of each layer.
class Linear : public CpuPrimitive<Linear, std::vector<LinearParts>> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopLinear";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  static Arrays composed(const Arrays& inputs, const std::vector<LinearParts>& layers,
                         mx::Stream stream);
};

}  // namespace gateloop
