#include "heads_chunk.h"
#include "heads_kernels.h"

namespace gateloop {

namespace {

// sum += x conj(f).
template <bool COMPLEX>
GATELOOP_INLINE void add_product(int n, const float* __restrict__ x, const float* __restrict__ f,
                                 float* __restrict__ sum) {
  for (int j = 0; j < n; ++j) {
    sum[j] += COMPLEX ? x[j] * f[j] + x[n + j] * f[n + j] : x[j] * f[j];
    if (COMPLEX) sum[n + j] += x[n + j] * f[j] - x[j] * f[n + j];
  }
}

template <bool COMPLEX>
GATELOOP_INLINE void weigh_gradient(int n, float sign, const float* __restrict__ x,
                                    const float* __restrict__ decay, const float* __restrict__ dz,
                                    float* __restrict__ dx, float* __restrict__ ddecay) {
  for (int j = 0; j < n; ++j) {
    dx[j] += COMPLEX ? dz[j] * decay[j] + sign * dz[n + j] * decay[n + j] : dz[j] * decay[j];
    ddecay[j] += x[j] * dz[j];
    if (COMPLEX) ddecay[n + j] += sign * x[j] * dz[n + j];
  }
}

// The arrays of a chunk that only the gradient has.
struct ChunkGradient {
  explicit ChunkGradient(const Chunk& c)
      : dq(c.steps, c.K),
        dk(c.steps, c.K),
        dv(c.steps, c.V),
        dy(c.steps, c.V),
        dscores(c.steps, c.steps),
        dprefix(c.steps, c.W),
        dsuffix(c.steps, c.W),
        dweighed(c.steps, c.W),
        state(c.W, c.V),
        through(1, c.W) {}

  Rows dq, dk, dv, dy, dscores, dprefix, dsuffix, dweighed, state, through;

  void clear() {
    for (Rows* rows : {&dq, &dk, &dv, &dprefix, &dsuffix}) rows->clear();
  }
};

// Through the states before and after the chunk and the values.
template <bool COMPLEX>
GATELOOP_INLINE void outside_gradient(const Chunk& c, ChunkGradient& g, const float* dstate) {
  int K = c.K, V = c.V, W = c.W;
  multiply(c.steps, c.steps, V, {c.scores, 1, c.steps, Part::upper}, g.dy, g.dv, V);
  multiply(c.steps, W, V, {c.keys, W, 1}, dstate, g.dv, V);
  dots(c.steps, c.steps, V, g.dy, c.v, g.dscores, c.steps, c.transposed);
  dots(c.steps, W, V, g.dy, g.state, g.dweighed, W, c.transposed);
  for (int n = 0; n < c.steps; ++n)
    weigh_gradient<COMPLEX>(K, kQuery, c.q + n * K, c.prefix + n * W, g.dweighed + n * W,
                            g.dq + n * K, g.dprefix + n * W);
  dots(c.steps, W, V, c.v, dstate, g.dweighed, W, c.transposed);
  for (int n = 0; n < c.steps; ++n)
    weigh_gradient<COMPLEX>(K, kKey, c.k + n * K, c.suffix + n * W, g.dweighed + n * W,
                            g.dk + n * K, g.dsuffix + n * W);
  float* dtotal = g.dprefix + (c.steps - 1) * W;
  for (int j = 0; j < K; ++j) {
    const float *h = g.state + j * V, *hi = h + K * V, *d = dstate + j * V, *di = d + K * V;
    float re = 0, im = 0;
#pragma omp simd reduction(+ : re, im)
    for (int x = 0; x < V; ++x) {
      re += COMPLEX ? h[x] * d[x] + hi[x] * di[x] : h[x] * d[x];
      if (COMPLEX) im += h[x] * di[x] - hi[x] * d[x];
    }
    dtotal[j] += re;
    if (COMPLEX) dtotal[K + j] += im;
  }
}

// Through the decays of a block, back to those of its halves.
template <bool COMPLEX>
GATELOOP_INLINE void halves_gradient(const Chunk& c, ChunkGradient& g, int begin, int half,
                                     const float* decays) {
  int K = c.K, W = c.W, middle = begin + half, end = middle + half;
  const float* second = decays + (end - 1) * W;
  float *dfirst = g.dprefix + (middle - 1) * W, *dsecond = g.dprefix + (end - 1) * W;
  float* through = g.through;
  copy(W, decays + begin * W, through);  // the first half's product: its first step times the rest
  scale<COMPLEX, false>(K, c.a + begin * W, through);
  for (int n = middle; n < end; ++n) {
    add_product<COMPLEX>(K, g.dprefix + n * W, decays + n * W, dfirst);
    scale<COMPLEX, true>(K, through, g.dprefix + n * W);
  }
  for (int n = begin; n < middle; ++n) {
    add_product<COMPLEX>(K, g.dsuffix + n * W, decays + n * W, dsecond);
    scale<COMPLEX, true>(K, second, g.dsuffix + n * W);
  }
}

// Through the scores; at last g.dprefix is the gradient of a.
template <bool COMPLEX>
GATELOOP_INLINE void inside_gradient(const Chunk& c, ChunkGradient& g) {
  int K = c.K, W = c.W, half = c.steps / 2;
  for (int l = std::bit_width(unsigned(half)) - 1; half >= 1; half /= 2, --l) {
    const float *decays = c.level(c.decays, l), *weighed = c.level(c.weighed, l);
    g.dweighed.clear();
    for (int begin = 0; begin < c.steps; begin += 2 * half) {
      int middle = begin + half, end = middle + half;
      halves_gradient<COMPLEX>(c, g, begin, half, decays);
      const float* dscores = g.dscores + middle * c.steps + begin;
      multiply(half, half, W, {dscores, c.steps, 1}, weighed + begin * W, g.dweighed + middle * W,
               W);
      multiply(half, half, W, {dscores, 1, c.steps}, weighed + middle * W, g.dweighed + begin * W,
               W);
      for (int n = begin; n < middle; ++n)
        weigh_gradient<COMPLEX>(K, kKey, c.k + n * K, decays + n * W, g.dweighed + n * W,
                                g.dk + n * K, g.dsuffix + n * W);
      for (int n = middle; n < end; ++n)
        weigh_gradient<COMPLEX>(K, kQuery, c.q + n * K, decays + n * W, g.dweighed + n * W,
                                g.dq + n * K, g.dprefix + n * W);
    }
  }
  for (int n = 0; n < c.steps; ++n) {
    float d = g.dscores[n * c.steps + n];
    float *dq = g.dq + n * K, *dk = g.dk + n * K;
    const float *q = c.q + n * K, *k = c.k + n * K;
#pragma GCC ivdep
    for (int j = 0; j < K; ++j) {
      dq[j] += d * k[j];
      dk[j] += d * q[j];
    }
  }
}

template <bool COMPLEX>
GATELOOP_INLINE void store_gates_gradient(const HeadSlab& s, const HeadGradients& out,
                                          const float* a, const float* rest, float* da, size_t row,
                                          int width) {
  if (s.G == 1)
    for (int p = 0; p < s.planes(); ++p)
      for (int j = 1; j < s.K; ++j) da[p * width] += da[p * width + j];
  float* di = COMPLEX ? da + width : nullptr;
  gates_gradient<COMPLEX>(s.form, s.G, a, COMPLEX ? a + width : nullptr, rest, da, di);
  out.dfirst.write(row * s.G, s.G, da);
  if (COMPLEX) out.dsecond.write(row * s.G, s.G, di);
}

template <bool COMPLEX>
GATELOOP_INLINE void store_gradients(const HeadSlab& s, const HeadGradients& out, int begin,
                                     const Chunk& c, ChunkGradient& g) {
  for (int n = 0; n < std::min(c.steps, s.L - begin); ++n) {
    size_t row = s.row(begin + n);
    if (s.live(begin + n)) {
      out.dq.write(row * s.K, s.K, g.dq + n * c.K);
      out.dk.write(row * s.K, s.K, g.dk + n * c.K);
      out.dv.write(row * s.V, s.V, g.dv + n * c.V);
      store_gates_gradient<COMPLEX>(s, out, c.a + n * c.W, c.rest + n * c.K, g.dprefix + n * c.W,
                                    row, c.K);
      continue;
    }
    out.dq.clear(row * s.K, s.K);
    out.dk.clear(row * s.K, s.K);
    out.dv.clear(row * s.V, s.V);
    out.dfirst.clear(row * s.G, s.G);
    if (COMPLEX) out.dsecond.clear(row * s.G, s.G);
  }
}

}  // namespace

HeadGradients HeadGradients::of(int b, int h, const HeadSlab& s) const {
  HeadGradients g = *this;
  size_t row = size_t(b) * s.L * s.H + h, plane = size_t(s.K) * s.V;
  size_t start = (size_t(b) * s.planes() * s.H + h) * plane;
  g.saved += (size_t(b) * s.H + h) * (s.chunks() - 1) * s.state();
  g.dy.skip(row * s.V);
  g.dlast += start;
  g.dq.skip(row * s.K);
  g.dk.skip(row * s.K);
  g.dv.skip(row * s.V);
  g.dfirst.skip(row * s.G);
  if (dsecond) g.dsecond.skip(row * s.G);
  g.dh0 += start;
  return g;
}

template <bool COMPLEX>
GATELOOP_INLINE void chunk_backward(const HeadSlab& s, const HeadGradients& out, int i, Chunk& c,
                                    ChunkGradient& g, float* dstate) {
  int begin = i * c.steps;
  size_t plane = size_t(s.K) * s.V;
  load<COMPLEX>(s, begin, c);
  for (int n = 0; n < c.steps; ++n) {
    float* dy = g.dy + n * c.V;
    if (s.live(begin + n)) out.dy.copy(s.row(begin + n) * s.V, s.V, dy);
    else std::fill_n(dy, s.V, 0.0f);
  }
  if (i) load_state(s, out.saved + (i - 1) * s.state(), plane, c.K, c.V, g.state);
  else load_state(s, s.h0, s.H * plane, c.K, c.V, g.state);
  inside<COMPLEX>(c);
  g.clear();
  outside_gradient<COMPLEX>(c, g, dstate);
  inside_gradient<COMPLEX>(c, g);
  store_gradients<COMPLEX>(s, out, begin, c, g);
  decay_state<COMPLEX>(c, -1, dstate);
  multiply(c.W, c.steps, c.V, {c.queries, 1, c.W}, g.dy, dstate, c.V);
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void heads_backward(const HeadSlab& s, const HeadGradients& out, int heads) {
  Chunk c(s, true);
  ChunkGradient g(c);
  States dstates(s, c, heads, out.dlast);
  for (int i = s.chunks() - 1; i >= 0; --i)
    for (int h = 0; h < heads; ++h)
      chunk_backward<COMPLEX>(s.of(0, h), out.of(0, h, s), i, c, g, dstates[h]);
  dstates.store(out.dh0);
}

template void heads_backward<true>(const HeadSlab&, const HeadGradients&, int);
template void heads_backward<false>(const HeadSlab&, const HeadGradients&, int);

}  // namespace gateloop
