#include "heads_kernels.h"

#include "heads_chunk.h"

namespace gateloop {

HeadSlab HeadSlab::of(int b, int h) const {
  HeadSlab slab = *this;
  size_t row = size_t(b) * L * H + h, plane = size_t(K) * V;
  size_t start = (size_t(b) * planes() * H + h) * plane;
  slab.q.skip(row * K);
  slab.k.skip(row * K);
  slab.v.skip(row * V);
  slab.first.skip(row * G);
  if (second) slab.second.skip(row * G);
  if (h0) slab.h0 += start;
  if (mask) slab.mask += size_t(b) * L;
  if (y) {
    slab.y.skip(row * V);
    slab.last += start;
    slab.saved += (size_t(b) * H + h) * (chunks() - 1) * state();
  }
  return slab;
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void heads_forward(const HeadSlab& s) {
  Chunk c(s, false);
  Rows y(c.steps, c.V);
  size_t plane = size_t(s.K) * s.V;
  load_state(s, s.h0, s.H * plane, c.K, c.V, c.state);
  for (int i = 0; i < s.chunks(); ++i) {
    int begin = i * c.steps;
    if (i) store_state(s, c.state, c.K, c.V, s.saved + (i - 1) * s.state(), plane);
    load<COMPLEX>(s, begin, c);
    inside<COMPLEX>(c);
    y.clear();
    multiply(c.steps, c.steps, c.V, {c.scores, c.steps, 1, Part::lower}, c.v, y, c.V);
    multiply(c.steps, c.W, c.V, {c.queries, c.W, 1}, c.state, y, c.V);
    decay_state<COMPLEX>(c, 1, c.state);
    multiply(c.W, c.steps, c.V, {c.keys, 1, c.W}, c.v, c.state, c.V);
    for (int n = 0; n < std::min(c.steps, s.L - begin); ++n) {
      size_t to = s.row(begin + n) * s.V;
      if (s.live(begin + n)) s.y.write(to, s.V, y + n * c.V);
      else s.y.clear(to, s.V);
    }
  }
  store_state(s, c.state, c.K, c.V, s.last, s.H * plane);
}

template void heads_forward<true>(const HeadSlab&);
template void heads_forward<false>(const HeadSlab&);

}  // namespace gateloop
