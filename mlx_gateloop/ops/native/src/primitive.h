// What the primitives of this extension share: float32 in and out, CPU only, and derivatives of
// any order from the same result written in MLX operations.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace gateloop {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;
using Work = std::function<void()>;

// `Self` has kName; output_shapes(inputs); work(inputs, outputs), which returns what to run once the
// data is there; and composed(inputs, options, stream), the outputs in MLX operations.
template <class Self, class Options>
class CpuPrimitive : public mx::Primitive {
 public:
  CpuPrimitive(mx::Stream stream, Options options) : mx::Primitive(stream), options(options) {}

  // The outputs for these inputs, not yet computed.
  static Arrays make(Arrays inputs, Options options, mx::Stream stream) {
    for (auto& x : inputs) x = mx::contiguous(x, false, stream);
    auto self = std::make_shared<Self>(stream, options);
    auto shapes = self->output_shapes(inputs);
    std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
    return mx::array::make_arrays(std::move(shapes), dtypes, self, std::move(inputs));
  }

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    static_cast<Self*>(this)->allocate(inputs, outputs);
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (auto& x : inputs) encoder.set_input_array(x);
    for (auto& x : outputs) encoder.set_output_array(x);
    encoder.dispatch(static_cast<Self*>(this)->work(inputs, outputs));
  }
  void allocate(const Arrays&, Arrays& outputs) {
    for (auto& x : outputs) x.set_data(mx::allocator::malloc(x.nbytes()));
  }
  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(Self::kName) + ": runs on the CPU only");
  }

  const char* name() const override { return Self::kName; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return options == static_cast<const Self&>(other).options;
  }

  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums)
      override {
    return mx::jvp(composed_of(primals, argnums), pick(primals, argnums), tangents).second;
  }
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
             const Arrays&) override {
    return mx::vjp(composed_of(primals, argnums), pick(primals, argnums), cotangents).second;
  }

  // Every input and output has the batch first: the new axis is folded into it.
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes)
      override {
    int size = 1;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (axes[i] >= 0) size = inputs[i].shape(axes[i]);
    Arrays folded;
    int batch = 1;
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto x = axes[i] >= 0 ? mx::moveaxis(inputs[i], axes[i], 0, stream())
                            : mx::expand_dims(inputs[i], 0, stream());
      auto shape = x.shape();
      shape[0] = size;
      batch = shape[1];
      folded.push_back(mx::flatten(mx::broadcast_to(x, shape, stream()), 0, 1, stream()));
    }
    auto outputs = make(folded, options, stream());
    for (auto& x : outputs) x = mx::unflatten(x, 0, {size, batch}, stream());
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }

 protected:
  Options options;

 private:
  static Arrays pick(const Arrays& arrays, const std::vector<int>& argnums) {
    Arrays picked;
    for (int i : argnums) picked.push_back(arrays[i]);
    return picked;
  }
  // `composed` as a function of the inputs in argnums, the others fixed.
  std::function<Arrays(const Arrays&)> composed_of(Arrays inputs, std::vector<int> argnums) {
    return [=, options = options, stream = stream()](const Arrays& varying) {
      auto all = inputs;
      for (size_t i = 0; i < argnums.size(); ++i) all[argnums[i]] = varying[i];
      return Self::composed(all, options, stream);
    };
  }
};

// Data of the arrays, for a kernel.
inline std::vector<float*> data_of(Arrays& arrays) {
  std::vector<float*> pointers;
  for (auto& x : arrays) pointers.push_back(x.data<float>());
  return pointers;
}
inline std::vector<const float*> data_of(const Arrays& arrays) {
  std::vector<const float*> pointers;
  for (auto& x : arrays) pointers.push_back(x.data<float>());
  return pointers;
}

}  // namespace gateloop
