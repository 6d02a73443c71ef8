#include "gate_loop.h"

#include "gate_loop_kernels.h"
#include "linear_scan.h"
#include "parallel.h"

namespace gateloop {

namespace {

GateLoopSlab slab_of(const Arrays& inputs, const GateLoopOptions& options) {
  GateLoopSlab slab{inputs_of(inputs, options)};
  slab.D = inputs[0].shape(2);
  slab.planes = options.planes();
  return slab;
}

mx::Shape state_shape(const mx::array& q, const GateLoopOptions& o) {
  return {q.shape(0), o.planes(), q.shape(2)};
}

void check_shapes(const Arrays& inputs, const GateLoopOptions& o) {
  auto& q = inputs[0];
  require(q.ndim() == 3, "gate_loop: q is [B, L, D]");
  for (int i = 1; i < o.h0(); ++i)
    require(inputs[i].shape() == q.shape(), "gate_loop: q, k, v and a have one shape [B, L, D]");
  require(!o.has_h0 || inputs[o.h0()].shape() == state_shape(q, o),
          "gate_loop: h0 is [B, planes of a, D]");
  require(!o.has_mask || inputs[o.mask()].shape() == mx::Shape{q.shape(0), q.shape(1)},
          "gate_loop: mask is [B, L]");
}

// y, the last state and the saved states.
std::vector<mx::Shape> output_shapes_for(const mx::array& q, const GateLoopOptions& o) {
  int chunks = (q.shape(1) + kChunk - 1) / kChunk;
  return {q.shape(), state_shape(q, o), {q.shape(0), chunks, o.planes(), q.shape(2)}};
}

// Plane `i` of a state [B, planes, D].
mx::array plane(const mx::array& state, int i, mx::Stream s) { return mx::take(state, i, 1, s); }

// The planes of a in MLX operations.
Arrays gates(const Arrays& in, const GateLoopOptions& o, mx::Stream s) {
  if (o.form == Form::cartesian) {
    return o.complex_a ? Arrays{in[3], in[o.second()]} : Arrays{in[3]};
  }
  auto magnitude = o.form == Form::sigmoid ? mx::sigmoid(in[3], s) : mx::exp(in[3], s);
  if (!o.complex_a) return {magnitude};
  auto theta = in[o.second()];
  return {mx::multiply(magnitude, mx::cos(theta, s), s),
          mx::multiply(magnitude, mx::sin(theta, s), s)};
}

}  // namespace

std::vector<mx::Shape> GateLoop::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options);
  return output_shapes_for(inputs[0], options);
}

Work GateLoop::work(const Arrays& inputs, Arrays& outputs) {
  auto slab = slab_of(inputs, options);
  slab.y = sink_of(outputs[0]);
  slab.last = outputs[1].data<float>();
  slab.saved = outputs[2].data<float>();
  return [=, B = inputs[0].shape(0), complex_a = options.complex_a] {
    split_slabs(B, slab.L, slab.D, [&](int b, int d0, int d1) {
      (complex_a ? gate_loop_forward<true> : gate_loop_forward<false>)(slab.of(b), d0, d1);
    });
  };
}

Arrays GateLoop::vjp(const Arrays& primals, const Arrays& cotangents,
                     const std::vector<int>& argnums, const Arrays& outputs) {
  auto inputs = gradient_inputs(primals, cotangents, outputs, stream());
  return asked(primals, argnums, GateLoopGradient::make(inputs, options, stream()));
}

Arrays GateLoop::composed(const Arrays& given, GateLoopOptions o, mx::Stream s) {
  auto in = widened(given, s);
  auto a = gates(in, o, s);
  auto x = mx::multiply(in[1], in[2], s);
  auto live = o.has_mask ? mx::expand_dims(in[o.mask()], 2, s) : mx::array(true);
  if (o.has_mask) {
    x = mx::where(live, x, mx::array(0.0f), s);
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = mx::where(live, a[i], mx::array(i ? 0.0f : 1.0f), s);
  }
  auto start = o.has_h0 ? in[o.h0()] : mx::zeros(state_shape(in[0], o), s);
  Arrays inputs = a;
  inputs.push_back(x);
  for (size_t i = 0; i < a.size(); ++i) inputs.push_back(plane(start, i, s));
  auto h = Scan::make(inputs, {o.complex_a, false, true, o.reverse}, s);
  auto y = mx::multiply(in[0], h[0], s);
  if (o.has_mask) y = mx::where(live, y, mx::array(0.0f), s);
  Arrays last;
  for (auto& x : h) last.push_back(mx::take(x, o.reverse ? 0 : x.shape(1) - 1, 1, s));
  auto saved = output_shapes_for(in[0], o)[2];
  return {mx::astype(y, given[2].dtype(), s), mx::stack(last, 1, s), mx::zeros(saved, s)};
}

std::vector<mx::Shape> GateLoopGradient::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options);
  auto forward = output_shapes_for(inputs[0], options);
  const mx::Shape* expected[] = {&forward[2], &forward[0], &forward[1]};
  for (int i = 0; i < 3; ++i)
    require(inputs[options.end() + i].shape() == *expected[i],
            "gate_loop: the gradients of y and of the last state have their shapes");
  std::vector<mx::Shape> shapes(options.h0(), inputs[0].shape());
  shapes.push_back(state_shape(inputs[0], options));
  return shapes;
}

// This allocates five arrays of the inputs' size, while y and the loss's intermediate results may
// still wait for their last use. If these are large, finishing the pending work first frees them.
void GateLoopGradient::allocate(const Arrays& inputs, Arrays& outputs) {
  constexpr size_t kLarge = 1 << 22;  // 16 MB per float32 plane
  if (inputs[0].size() >= kLarge) mx::synchronize(stream());
  CpuPrimitive::allocate(inputs, outputs);
}

Work GateLoopGradient::work(const Arrays& inputs, Arrays& outputs) {
  auto slab = slab_of(inputs, options);
  GateLoopGradients gradients{gradients_of(inputs, outputs, options)};
  return [=, B = inputs[0].shape(0), complex_a = options.complex_a] {
    split_slabs(B, slab.L, slab.D, [&](int b, int d0, int d1) {
      (complex_a ? gate_loop_backward<true>
                 : gate_loop_backward<false>)(slab.of(b), gradients.of(b, slab), d0, d1);
    });
  };
}

// Differentiates the composed operator: second derivatives are rare, so they may be slow.
Arrays GateLoopGradient::composed(const Arrays& in, GateLoopOptions o, mx::Stream s) {
  return composed_gradient(GateLoop::composed, in, o, mx::zeros(state_shape(in[0], o), s), s);
}

}  // namespace gateloop
