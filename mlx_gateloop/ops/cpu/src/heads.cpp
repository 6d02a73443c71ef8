#include "heads.h"

#include "heads_kernels.h"
#include "parallel.h"

namespace gateloop {

namespace {

HeadSlab sizes_of(const Arrays& inputs, const GateLoopOptions& options) {
  HeadSlab slab{};
  slab.L = inputs[0].shape(1);
  slab.H = inputs[0].shape(2);
  slab.K = inputs[0].shape(3);
  slab.V = inputs[2].shape(3);
  slab.G = inputs[3].shape(3);
  slab.complex_a = options.complex_a;
  return slab;
}

HeadSlab slab_of(const Arrays& inputs, const GateLoopOptions& options) {
  auto slab = sizes_of(inputs, options);
  static_cast<OperatorInputs&>(slab) = inputs_of(inputs, options);
  return slab;
}

mx::Shape state_shape(const Arrays& inputs, const GateLoopOptions& o) {
  auto s = sizes_of(inputs, o);
  return {inputs[0].shape(0), s.planes(), s.H, s.K, s.V};
}

void check_shapes(const Arrays& in, const GateLoopOptions& o) {
  auto &q = in[0], &v = in[2], &first = in[3];
  require(q.ndim() == 4 && in[1].shape() == q.shape(), "gate_loop: q and k are [B, L, H, K]");
  auto sized = [&](int size) { return mx::Shape{q.shape(0), q.shape(1), q.shape(2), size}; };
  require(v.ndim() == 4 && v.shape() == sized(v.shape(3)), "gate_loop: v is [B, L, H, V]");
  require(first.shape() == q.shape() || first.shape() == sized(1),
          "gate_loop: a is [B, L, H, K] or [B, L, H, 1]");
  require(!o.complex_a || in[o.second()].shape() == first.shape(),
          "gate_loop: both planes of a have one shape");
  require(!o.has_h0 || in[o.h0()].shape() == state_shape(in, o),
          "gate_loop: h0 is [B, planes of a, H, K, V]");
  require(!o.has_mask || in[o.mask()].shape() == mx::Shape{q.shape(0), q.shape(1)},
          "gate_loop: mask is [B, L]");
}

// y, the last state and the saved states.
std::vector<mx::Shape> output_shapes_for(const Arrays& inputs, const GateLoopOptions& o) {
  auto s = sizes_of(inputs, o);
  int B = inputs[0].shape(0);
  return {
      inputs[2].shape(), state_shape(inputs, o), {B, s.H, s.chunks() - 1, s.planes(), s.K, s.V}};
}

// Calls `part(b, h, heads)` so that all heads of all batches are covered.
template <class Part>
void split_heads(int B, const HeadSlab& slab, const Part& part) {
  size_t count = size_t(B) * slab.H;
  split(count, count * slab.L * slab.K * slab.V, [&](size_t first, size_t last) {
    while (first < last) {  // the thread's heads, one batch at a time
      int b = int(first / slab.H), h = int(first % slab.H);
      int heads = int(std::min<size_t>(slab.H - h, last - first));
      part(b, h, heads);
      first += heads;
    }
  });
}

}  // namespace

std::vector<mx::Shape> Heads::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options);
  return output_shapes_for(inputs, options);
}

Work Heads::work(const Arrays& inputs, Arrays& outputs) {
  auto slab = slab_of(inputs, options);
  slab.y = sink_of(outputs[0]);
  slab.last = outputs[1].data<float>();
  slab.saved = outputs[2].data<float>();
  return [=, B = inputs[0].shape(0)] {
    split_heads(B, slab, [&](int b, int h, int heads) {
      (slab.complex_a ? heads_forward<true> : heads_forward<false>)(slab.of(b, h), heads);
    });
  };
}

Arrays Heads::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                  const Arrays& outputs) {
  auto inputs = gradient_inputs(primals, cotangents, outputs, stream());
  return asked(primals, argnums, HeadsGradient::make(inputs, options, stream()));
}

// The max-headed operator with a channel for each number of the state.
Arrays Heads::composed(const Arrays& given, GateLoopOptions o, mx::Stream s) {
  auto in = widened(given, s);  // before the sum over K
  auto state = state_shape(in, o);
  int B = state[0], planes = state[1], H = state[2], K = state[3], V = state[4];
  int L = in[0].shape(1), D = H * K * V;
  auto channels = [&](const mx::array& x, int axis) {  // [B, L, H, size] -> [B, L, D]
    auto wide = mx::broadcast_to(mx::expand_dims(x, axis, s), {B, L, H, K, V}, s);
    return mx::reshape(wide, {B, L, D}, s);
  };
  Arrays inputs{channels(in[0], 4), channels(in[1], 4), channels(in[2], 3)};
  for (int i = 3; i < o.h0(); ++i) inputs.push_back(channels(in[i], 4));
  if (o.has_h0) inputs.push_back(mx::reshape(in[o.h0()], {B, planes, D}, s));
  if (o.has_mask) inputs.push_back(in[o.mask()]);
  auto outputs = GateLoop::composed(inputs, o, s);
  auto y = mx::sum(mx::reshape(outputs[0], {B, L, H, K, V}, s), 3, false, s);
  auto saved = output_shapes_for(in, o)[2];
  return {mx::astype(y, given[2].dtype(), s), mx::reshape(outputs[1], state, s),
          mx::zeros(saved, s)};
}

std::vector<mx::Shape> HeadsGradient::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options);
  auto forward = output_shapes_for(inputs, options);
  const mx::Shape* expected[] = {&forward[2], &forward[0], &forward[1]};
  for (int i = 0; i < 3; ++i)
    require(inputs[options.end() + i].shape() == *expected[i],
            "gate_loop: the gradients of y and of the last state have their shapes");
  std::vector<mx::Shape> shapes;
  for (int i = 0; i < options.h0(); ++i) shapes.push_back(inputs[i].shape());
  shapes.push_back(state_shape(inputs, options));
  return shapes;
}

Work HeadsGradient::work(const Arrays& inputs, Arrays& outputs) {
  auto slab = slab_of(inputs, options);
  HeadGradients gradients{gradients_of(inputs, outputs, options)};
  return [=, B = inputs[0].shape(0)] {
    split_heads(B, slab, [&](int b, int h, int heads) {
      (slab.complex_a ? heads_backward<true>
                      : heads_backward<false>)(slab.of(b, h), gradients.of(b, h, slab), heads);
    });
  };
}

Arrays HeadsGradient::composed(const Arrays& in, GateLoopOptions o, mx::Stream s) {
  return composed_gradient(Heads::composed, in, o, mx::zeros(state_shape(in, o), s), s);
}

}  // namespace gateloop
