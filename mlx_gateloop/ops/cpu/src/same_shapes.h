// Arrays whose shapes must stay those of the trace in a shapeless compile.
#pragma once

#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace gateloop {

// Outputs: the inputs themselves. MLX's operations check no shapes when a shapeless compile is
// called with new ones: a composition that depends on them would read beyond its arrays, without a
// word. The primitive raises instead if the first `axes` sizes of an input differ; -1 is all.
class SameShapes : public mlx::core::Primitive {
 public:
  using Arrays = std::vector<mlx::core::array>;
  using Shapes = std::vector<mlx::core::Shape>;

  SameShapes(mlx::core::Stream stream, Shapes shapes, int axes)
      : Primitive(stream), shapes(std::move(shapes)), axes(axes) {}
  static Arrays of(const Arrays& inputs, mlx::core::Stream stream, int axes = -1);

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override { eval_cpu(inputs, outputs); }
  Arrays jvp(const Arrays&, const Arrays&, const std::vector<int>&) override;
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  std::pair<Arrays, std::vector<int>> vmap(const Arrays&, const std::vector<int>&) override;
  Shapes output_shapes(const Arrays& inputs) override;
  const char* name() const override { return "GateLoopSameShapes"; }
  bool is_equivalent(const Primitive& other) const override;

 private:
  Shapes shapes;
  int axes;
};

}  // namespace gateloop
