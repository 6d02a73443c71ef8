// The GateLoop operator with heads, and its gradient, on heads of one batch.
#pragma once

#include <bit>
#include <cstddef>

#include "gates.h"

namespace gateloop {

// Steps at most in a chunk; a power of two.
constexpr int kHeadChunk = 64;

// Pointers to batch 0 and head 0, or to others after `of(b, h)`; null for absent arrays.
struct HeadSlab : OperatorInputs {
  int H, K, V, G;  // G: transitions in a head, K or 1
  bool complex_a;
  Sink y;
  float* last;
  float* saved;  // the states before all chunks but the first

  int planes() const { return complex_a ? 2 : 1; }
  int chunk() const { return L < kHeadChunk ? int(std::bit_ceil(unsigned(L))) : kHeadChunk; }
  int chunks() const { return (L + chunk() - 1) / chunk(); }
  size_t state() const { return size_t(planes()) * K * V; }
  size_t row(int step) const { return size_t(reverse ? L - 1 - step : step) * H; }
  bool live(int step) const { return step < L && (!mask || mask[reverse ? L - 1 - step : step]); }
  HeadSlab of(int b, int h) const;
};

struct HeadGradients : OperatorGradients {
  HeadGradients of(int b, int h, const HeadSlab& slab) const;
};

// The slab's head and those after it, chunk by chunk: their rows are next to each other in memory.
template <bool COMPLEX>
void heads_forward(const HeadSlab& slab, int heads);
template <bool COMPLEX>
void heads_backward(const HeadSlab& slab, const HeadGradients& out, int heads);

}  // namespace gateloop
