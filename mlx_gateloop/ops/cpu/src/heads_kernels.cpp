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

// A sequence of one step, as in decoding: every number of a state is read once and written once.
template <bool COMPLEX>
GATELOOP_INLINE void step_forward(const HeadSlab& s, Chunk& c, Rows& y) {
  size_t other = size_t(s.H) * s.K * s.V;  // from a state's real plane to its imaginary one
  load<COMPLEX>(s, 0, c);
  y.clear();
  for (int j = 0; j < s.K; ++j) {
    const float *v = c.v, *h = s.h0 ? s.h0 + size_t(j) * s.V : nullptr;
    float *sum = y, *to = s.last + size_t(j) * s.V;
    float re = c.a[j], im = COMPLEX ? c.a[c.K + j] : 0, q = c.q[j], k = c.k[j];
#pragma GCC ivdep
    for (int x = 0; x < s.V; ++x) {
      float hr = h ? h[x] : 0, hi = COMPLEX && h ? h[other + x] : 0;
      float next = (COMPLEX ? re * hr - im * hi : re * hr) + k * v[x];
      to[x] = next;
      if (COMPLEX) to[other + x] = re * hi + im * hr;
      sum[x] += q * next;
    }
  }
  if (s.live(0)) s.y.write(0, s.V, y);
  else s.y.clear(0, s.V);
}

template <bool COMPLEX>
GATELOOP_INLINE void chunk_forward(const HeadSlab& s, int i, Chunk& c, float* state, Rows& y) {
  int begin = i * c.steps;
  if (i) store_state(s, state, c.K, c.V, s.saved + (i - 1) * s.state(), size_t(s.K) * s.V);
  load<COMPLEX>(s, begin, c);
  inside<COMPLEX>(c);
  y.clear();
  multiply(c.steps, c.steps, c.V, {c.scores, c.steps, 1, Part::lower}, c.v, y, c.V);
  multiply(c.steps, c.W, c.V, {c.queries, c.W, 1}, state, y, c.V);
  decay_state<COMPLEX>(c, 1, state);
  multiply(c.W, c.steps, c.V, {c.keys, 1, c.W}, c.v, state, c.V);
  for (int n = 0; n < std::min(c.steps, s.L - begin); ++n) {
    size_t to = s.row(begin + n) * s.V;
    if (s.live(begin + n)) s.y.write(to, s.V, y + n * c.V);
    else s.y.clear(to, s.V);
  }
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void heads_forward(const HeadSlab& s, int heads) {
  Chunk c(s, false);
  Rows y(c.steps, c.V);
  if (s.L == 1) {
    for (int h = 0; h < heads; ++h) step_forward<COMPLEX>(s.of(0, h), c, y);
    return;
  }
  States states(s, c, heads, s.h0);
  for (int i = 0; i < s.chunks(); ++i)
    for (int h = 0; h < heads; ++h) chunk_forward<COMPLEX>(s.of(0, h), i, c, states[h], y);
  states.store(s.last);
}

template void heads_forward<true>(const HeadSlab&, int);
template void heads_forward<false>(const HeadSlab&, int);

}  // namespace gateloop
