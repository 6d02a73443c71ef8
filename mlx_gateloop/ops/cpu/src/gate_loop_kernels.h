// The GateLoop operator and its gradient on the rows of one batch.
#pragma once

#include <cstddef>

#include "gates.h"

namespace gateloop {

// Steps between saved states; the gradient holds as many rows of gates and states at once.
constexpr int kChunk = 32;

// Pointers to batch 0, or to batch b after `of(b)`; null for absent inputs and outputs.
struct GateLoopSlab : OperatorInputs {
  int D, planes;
  Sink y;
  float *last, *saved;

  int chunks() const { return (L + kChunk - 1) / kChunk; }
  size_t row(int step) const { return size_t(reverse ? L - 1 - step : step); }
  bool live(int step) const { return !mask || mask[row(step)]; }
  GateLoopSlab of(int b) const;
};

struct GateLoopGradients : OperatorGradients {
  GateLoopGradients of(int b, const GateLoopSlab& slab) const;
};

// Channels d0..d1 of one batch; COMPLEX: the transition has a phase (or an imaginary part), and the
// states have two planes.
template <bool COMPLEX>
void gate_loop_forward(const GateLoopSlab& slab, int d0, int d1);
template <bool COMPLEX>
void gate_loop_backward(const GateLoopSlab& slab, const GateLoopGradients& out, int d0, int d1);

}  // namespace gateloop
