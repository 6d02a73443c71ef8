#include "same_shapes.h"

#include <algorithm>
#include <stdexcept>

namespace gateloop {

namespace mx = mlx::core;
using Arrays = SameShapes::Arrays;

Arrays SameShapes::of(const Arrays& inputs, mx::Stream stream, int axes) {
  Shapes shapes;
  std::vector<mx::Dtype> dtypes;
  for (auto& x : inputs) {
    shapes.push_back(x.shape());
    dtypes.push_back(x.dtype());
  }
  auto self = std::make_shared<SameShapes>(stream, shapes, axes);
  return mx::array::make_arrays(shapes, dtypes, self, inputs);
}

void SameShapes::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) outputs[i].copy_shared_buffer(inputs[i]);
}

Arrays SameShapes::jvp(const Arrays& primals, const Arrays& tangents,
                       const std::vector<int>& argnums) {
  Arrays all;
  for (auto& x : primals) all.push_back(mx::zeros_like(x, stream()));
  for (size_t i = 0; i < argnums.size(); ++i) all[argnums[i]] = tangents[i];
  return all;
}

Arrays SameShapes::vjp(const Arrays&, const Arrays& cotangents, const std::vector<int>& argnums,
                       const Arrays&) {
  Arrays chosen;
  for (int i : argnums) chosen.push_back(cotangents[i]);
  return chosen;
}

std::pair<Arrays, std::vector<int>> SameShapes::vmap(const Arrays& inputs,
                                                     const std::vector<int>& mapped) {
  auto same = of(inputs, stream());
  auto axes = mapped;
  int size = 0;
  for (size_t i = 0; i < same.size(); ++i)
    if (mapped[i] >= 0) size = same[i].shape(mapped[i]);
  // MLX's rules take a result without the new axis for one with it: every result gets it.
  for (size_t i = 0; i < same.size(); ++i) {
    if (mapped[i] >= 0) continue;
    auto shape = same[i].shape();
    shape.insert(shape.begin(), size);
    same[i] = mx::broadcast_to(same[i], shape, stream());
    axes[i] = 0;
  }
  return {same, axes};
}

SameShapes::Shapes SameShapes::output_shapes(const Arrays& inputs) {
  Shapes now;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& shape = inputs[i].shape();
    auto end = axes < 0 ? shape.end() : shape.begin() + axes;
    if (!std::equal(shape.begin(), end, shapes[i].begin()))
      throw std::invalid_argument(
          "mx.compile(shapeless=True): this derivative or mx.vmap was traced for other shapes; "
          "compile it without shapeless");
    now.push_back(shape);
  }
  return now;
}

bool SameShapes::is_equivalent(const mx::Primitive& other) const {
  auto& same = static_cast<const SameShapes&>(other);
  return shapes == same.shapes && axes == same.axes;
}

}  // namespace gateloop
