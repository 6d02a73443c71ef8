// The base of this extension's primitives: CPU only, with derivatives of any order from an
// equivalent composition of MLX operations.
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
#include "rows.h"
#include "same_shapes.h"

namespace gateloop {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;
using Work = std::function<void()>;

inline void require(bool good, const char* expected) {
  if (!good) throw std::invalid_argument(expected);
}

// Marks primitives whose outputs are row-contiguous.
struct RowContiguous {
  virtual ~RowContiguous() = default;
};

// Spares the graph a node for each weight, and for each output of another primitive here.
inline bool is_row_contiguous(const mx::array& x) {
  if (x.is_available()) return x.flags().row_contiguous;
  return x.has_primitive() && dynamic_cast<const RowContiguous*>(&x.primitive());
}

// `Self` has kName; output_shapes(inputs), which rejects inputs that do not match (in a shapeless
// compile MLX calls it again for new shapes); work(inputs, outputs), which returns the function to
// run when the data is ready; and composed(inputs, options, stream), the outputs in MLX operations.
// Only floating-point inputs have derivatives; masks and targets have none.
template <class Self, class Options>
class CpuPrimitive : public mx::Primitive, public RowContiguous {
 public:
  CpuPrimitive(mx::Stream stream, Options options) : mx::Primitive(stream), options(options) {}

  // Creates the outputs, not yet computed.
  static Arrays make(Arrays inputs, Options options, mx::Stream stream) {
    for (auto& x : inputs)
      if (!is_row_contiguous(x)) x = mx::contiguous(x, false, stream);
    auto self = std::make_shared<Self>(stream, options);
    auto shapes = self->output_shapes(inputs);
    auto dtypes = self->output_dtypes(inputs);
    dtypes.resize(shapes.size(), mx::float32);
    return mx::array::make_arrays(std::move(shapes), dtypes, self, std::move(inputs));
  }

  // Those of the first outputs; the others are float32.
  std::vector<mx::Dtype> output_dtypes(const Arrays&) { return {}; }

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

  Arrays jvp(const Arrays& primals, const Arrays& tangents,
             const std::vector<int>& argnums) override {
    std::vector<int> varying;
    Arrays along;
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (!varies(primals[argnums[i]])) continue;
      varying.push_back(argnums[i]);
      along.push_back(tangents[i]);
    }
    return mx::jvp(composed_of(primals, varying), pick(primals, varying), along).second;
  }
  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
             const Arrays&) override {
    std::vector<int> varying;
    for (int i : argnums)
      if (varies(primals[i])) varying.push_back(i);
    auto gradients =
        mx::vjp(composed_of(primals, varying), pick(primals, varying), cotangents).second;
    Arrays all = primals;
    for (size_t i = 0; i < varying.size(); ++i) all[varying[i]] = gradients[i];
    return asked(primals, argnums, all);
  }

  // All inputs and outputs have the batch first; the new axis is folded into it.
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs,
                                           const std::vector<int>& axes) override {
    auto folded = SameShapes::of(mapped_first(inputs, axes), stream(), 2);
    mx::Shape axis{folded[0].shape(0), folded[0].shape(1)};
    for (auto& x : folded) x = mx::flatten(x, 0, 1, stream());
    auto outputs = make(folded, options, stream());
    for (auto& x : outputs) x = mx::unflatten(x, 0, axis, stream());
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }

 protected:
  Options options;

  // Selects the gradients of the inputs in argnums; zero for inputs without a derivative.
  Arrays asked(const Arrays& primals, const std::vector<int>& argnums, const Arrays& gradients) {
    Arrays chosen;
    for (int i : argnums)
      chosen.push_back(varies(primals[i]) ? gradients[i] : mx::zeros_like(primals[i], stream()));
    return chosen;
  }

  // Moves the mapped axis of all inputs to the front; unmapped inputs are broadcast along it.
  Arrays mapped_first(const Arrays& inputs, const std::vector<int>& axes) {
    int size = 1;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (axes[i] >= 0) size = inputs[i].shape(axes[i]);
    Arrays moved;
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto x = axes[i] >= 0 ? mx::moveaxis(inputs[i], axes[i], 0, stream())
                            : mx::expand_dims(inputs[i], 0, stream());
      auto shape = x.shape();
      shape[0] = size;
      moved.push_back(mx::broadcast_to(x, shape, stream()));
    }
    return moved;
  }

 private:
  static bool varies(const mx::array& x) { return mx::issubdtype(x.dtype(), mx::floating); }
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
      return Self::composed(SameShapes::of(all, stream), options, stream);
    };
  }
};

// Rows of float32, float16 or bfloat16 arrays.
inline bool has_rows(const mx::array& x) {
  return x.dtype() == mx::float32 || x.dtype() == mx::float16 || x.dtype() == mx::bfloat16;
}
inline Type type_of(const mx::array& x) {
  return x.dtype() == mx::float32   ? Type::float32
         : x.dtype() == mx::float16 ? Type::float16
                                    : Type::bfloat16;
}
inline Source source_of(const mx::array& x) { return {x.data<void>(), type_of(x)}; }
inline Sink sink_of(mx::array& x) { return {x.data<void>(), type_of(x)}; }

// The arrays with all that are floating-point in float32, for compositions.
inline Arrays widened(Arrays arrays, mx::Stream s) {
  for (auto& x : arrays)
    if (mx::issubdtype(x.dtype(), mx::floating)) x = mx::astype(x, mx::float32, s);
  return arrays;
}

// Data pointers of float32 arrays.
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
