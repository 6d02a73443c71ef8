// The chunked form: matrix products inside a chunk, a carried state between chunks. Scores between
// the halves of a block are one product of queries times the decay since the boundary with keys
// times the decay up to it; doubling the blocks from one step to the chunk covers every pair.
// Products of transitions only, never a quotient: resets (a = 0) and underflow need no special
// case.
#include "heads_kernels.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <new>

#include "products.h"
#include "vector_math.h"

namespace gateloop {

namespace {

// Rows of n floats, or of both planes of n numbers, the imaginary one `n` floats after the real.

GATELOOP_INLINE void copy(int n, const float* from, float* to) { std::copy_n(from, n, to); }

// x = x f, or x = x conj(f).
template <bool COMPLEX, bool CONJUGATE>
GATELOOP_INLINE void scale(int n, const float* __restrict__ f, float* __restrict__ x) {
  for (int j = 0; j < n; ++j) {
    float re = x[j];
    if (COMPLEX) {
      float im = x[n + j], fi = CONJUGATE ? -f[n + j] : f[n + j];
      x[j] = f[j] * re - fi * im;
      x[n + j] = f[j] * im + fi * re;
    } else {
      x[j] = f[j] * re;
    }
  }
}

// sum += x conj(f).
template <bool COMPLEX>
GATELOOP_INLINE void add_product(int n, const float* __restrict__ x, const float* __restrict__ f,
                                 float* __restrict__ sum) {
  for (int j = 0; j < n; ++j) {
    sum[j] += COMPLEX ? x[j] * f[j] + x[n + j] * f[n + j] : x[j] * f[j];
    if (COMPLEX) sum[n + j] += x[n + j] * f[j] - x[j] * f[n + j];
  }
}

// z = x decay for keys; conjugated for queries, so that a dot product of two z is a real part.
template <bool COMPLEX>
GATELOOP_INLINE void weigh(int n, float sign, const float* __restrict__ x,
                           const float* __restrict__ decay, float* __restrict__ z) {
  for (int j = 0; j < n; ++j) {
    z[j] = x[j] * decay[j];
    if (COMPLEX) z[n + j] = sign * x[j] * decay[n + j];
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

constexpr float kQuery = -1, kKey = 1;

int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Zeros at the start of a cache line.
class Rows {
 public:
  Rows(size_t count, size_t width)
      : size(count * width),
        data(static_cast<float*>(std::aligned_alloc(64, (size * 4 + 63) / 64 * 64)), std::free) {
    if (!data) throw std::bad_alloc();
    clear();
  }
  operator float*() const { return data.get(); }
  void clear() { std::fill_n(data.get(), size, 0.0f); }

 private:
  size_t size;
  std::unique_ptr<float, void (*)(void*)> data;
};

// The arrays of a chunk, their rows padded with zeros to whole vectors. Level l is the doubling
// from blocks of 2^l steps. The gradient needs all levels again, the operator one at a time.
struct Chunk {
  Chunk(const HeadSlab& s, bool keeps_levels)
      : steps(s.chunk()),
        K(padded(s.K)),
        V(padded(s.V)),
        W(s.planes() * K),
        levels(keeps_levels ? std::bit_width(unsigned(steps)) : 1) {}

  int steps, K, V, W;  // W: the K of all planes
  int levels;
  Rows q{size_t(steps), size_t(K)}, k{size_t(steps), size_t(K)}, rest{size_t(steps), size_t(K)};
  Rows v{size_t(steps), size_t(V)}, scores{size_t(steps), size_t(steps)};
  Rows a{size_t(steps), size_t(W)};
  // The products of a through each step and from after it: in the block, at last in the chunk.
  Rows prefix{size_t(steps), size_t(W)}, suffix{size_t(steps), size_t(W)};
  // Queries times prefix and keys times suffix in the chunk.
  Rows queries{size_t(steps), size_t(W)}, keys{size_t(steps), size_t(W)};
  // A level's suffix (first halves) and prefix (second halves), and keys and queries times these.
  Rows decays{size_t(levels) * steps, size_t(W)}, weighed{size_t(levels) * steps, size_t(W)};
  Rows state{size_t(W), size_t(V)};
  Rows transposed{size_t(std::max(W, V)), size_t(std::max(W, steps))};  // for `dots`

  float* level(const Rows& rows, int l) const {
    return rows + (levels > 1 ? size_t(l) * steps * W : 0);
  }
};

template <bool COMPLEX>
GATELOOP_INLINE void load_gates(const HeadSlab& s, size_t row, int width, float* a, float* rest) {
  const float* first = s.first + row * s.G;
  const float* second = COMPLEX ? s.second + row * s.G : nullptr;
  for (int j = 0; j < s.G; j += kTile)
    gates<COMPLEX>(s.form, std::min(kTile, s.G - j), first + j, COMPLEX ? second + j : nullptr,
                   a + j, COMPLEX ? a + width + j : nullptr, rest + j);
  if (s.G == s.K) return;
  std::fill_n(a, s.K, a[0]);
  if (COMPLEX) std::fill_n(a + width, s.K, a[width]);
}

// Steps from `begin` on; those that are masked or beyond the end are the identity.
template <bool COMPLEX>
GATELOOP_INLINE void load(const HeadSlab& s, int begin, Chunk& c) {
  for (int n = 0; n < c.steps; ++n) {
    float *q = c.q + n * c.K, *k = c.k + n * c.K, *v = c.v + n * c.V, *a = c.a + n * c.W;
    if (!s.live(begin + n)) {
      std::fill_n(q, s.K, 0.0f);
      std::fill_n(k, s.K, 0.0f);
      std::fill_n(v, s.V, 0.0f);
      std::fill_n(a, s.K, 1.0f);
      if (COMPLEX) std::fill_n(a + c.K, s.K, 0.0f);
      continue;
    }
    size_t row = s.row(begin + n);
    copy(s.K, s.q + row * s.K, q);
    copy(s.K, s.k + row * s.K, k);
    copy(s.V, s.v + row * s.V, v);
    load_gates<COMPLEX>(s, row, c.K, a, c.rest + n * c.K);
  }
}

// A state of planes [K, V], `stride` apart; null is zero.
GATELOOP_INLINE void load_state(const HeadSlab& s, const float* from, size_t stride, int K, int V,
                                float* to) {
  for (int p = 0; p < s.planes(); ++p)
    for (int j = 0; j < s.K; ++j) {
      float* row = to + size_t(p * K + j) * V;
      if (from) copy(s.V, from + p * stride + size_t(j) * s.V, row);
      else std::fill_n(row, s.V, 0.0f);
    }
}

GATELOOP_INLINE void store_state(const HeadSlab& s, const float* from, int K, int V, float* to,
                                 size_t stride) {
  for (int p = 0; p < s.planes(); ++p)
    for (int j = 0; j < s.K; ++j)
      copy(s.V, from + size_t(p * K + j) * V, to + p * stride + size_t(j) * s.V);
}

// Scores, and the decays from the chunk's start and to its end.
template <bool COMPLEX>
GATELOOP_INLINE void inside(Chunk& c) {
  int K = c.K, W = c.W;
  copy(c.steps * W, c.a, c.prefix);
  for (int n = 0; n < c.steps; ++n) {
    std::fill_n(c.suffix + n * W, K, 1.0f);
    if (COMPLEX) std::fill_n(c.suffix + n * W + K, K, 0.0f);
    dots(1, 1, K, c.q + n * K, c.k + n * K, c.scores + n * c.steps + n, c.steps, c.transposed);
  }
  for (int half = 1, l = 0; half < c.steps; half *= 2, ++l) {
    float *decays = c.level(c.decays, l), *weighed = c.level(c.weighed, l);
    for (int begin = 0; begin < c.steps; begin += 2 * half) {
      int middle = begin + half, end = middle + half;
      copy(half * W, c.suffix + begin * W, decays + begin * W);
      copy(half * W, c.prefix + middle * W, decays + middle * W);
      for (int n = begin; n < middle; ++n) {
        weigh<COMPLEX>(K, kKey, c.k + n * K, decays + n * W, weighed + n * W);
        scale<COMPLEX, false>(K, decays + (end - 1) * W, c.suffix + n * W);
      }
      for (int n = middle; n < end; ++n) {
        weigh<COMPLEX>(K, kQuery, c.q + n * K, decays + n * W, weighed + n * W);
        scale<COMPLEX, false>(K, c.prefix + (middle - 1) * W, c.prefix + n * W);
      }
      dots(half, half, W, weighed + middle * W, weighed + begin * W,
           c.scores + middle * c.steps + begin, c.steps, c.transposed);
    }
  }
  for (int n = 0; n < c.steps; ++n) {
    weigh<COMPLEX>(K, kQuery, c.q + n * K, c.prefix + n * W, c.queries + n * W);
    weigh<COMPLEX>(K, kKey, c.k + n * K, c.suffix + n * W, c.keys + n * W);
  }
}

// Each row of a state times the chunk's product of transitions, or its conjugate.
template <bool COMPLEX>
GATELOOP_INLINE void decay_state(const Chunk& c, float sign, float* state) {
  const float* total = c.prefix + (c.steps - 1) * c.W;
  for (int j = 0; j < c.K; ++j) {
    float re = total[j], im = COMPLEX ? sign * total[c.K + j] : 0;
    float *x = state + size_t(j) * c.V, *z = x + size_t(c.K) * c.V;
#pragma GCC ivdep
    for (int i = 0; i < c.V; ++i) {
      float hr = x[i];
      x[i] = COMPLEX ? re * hr - im * z[i] : re * hr;
      if (COMPLEX) z[i] = re * z[i] + im * hr;
    }
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
        dstate(c.W, c.V) {}

  Rows dq, dk, dv, dy, dscores, dprefix, dsuffix, dweighed, dstate;

  void clear() {
    for (Rows* rows : {&dq, &dk, &dv, &dprefix, &dsuffix}) rows->clear();
  }
};

// Through the states before and after the chunk and the values.
template <bool COMPLEX>
GATELOOP_INLINE void outside_gradient(const Chunk& c, ChunkGradient& g) {
  int K = c.K, V = c.V, W = c.W;
  multiply(c.steps, c.steps, V, {c.scores, 1, c.steps, Part::upper}, g.dy, g.dv, V);
  multiply(c.steps, W, V, {c.keys, W, 1}, g.dstate, g.dv, V);
  dots(c.steps, c.steps, V, g.dy, c.v, g.dscores, c.steps, c.transposed);
  dots(c.steps, W, V, g.dy, c.state, g.dweighed, W, c.transposed);
  for (int n = 0; n < c.steps; ++n)
    weigh_gradient<COMPLEX>(K, kQuery, c.q + n * K, c.prefix + n * W, g.dweighed + n * W,
                            g.dq + n * K, g.dprefix + n * W);
  dots(c.steps, W, V, c.v, g.dstate, g.dweighed, W, c.transposed);
  for (int n = 0; n < c.steps; ++n)
    weigh_gradient<COMPLEX>(K, kKey, c.k + n * K, c.suffix + n * W, g.dweighed + n * W,
                            g.dk + n * K, g.dsuffix + n * W);
  float* dtotal = g.dprefix + (c.steps - 1) * W;
  for (int j = 0; j < K; ++j) {
    const float *h = c.state + j * V, *hi = h + K * V, *d = g.dstate + j * V, *di = d + K * V;
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
                                     const float* decays, float* through) {
  int K = c.K, W = c.W, middle = begin + half, end = middle + half;
  const float* second = decays + (end - 1) * W;
  float *dfirst = g.dprefix + (middle - 1) * W, *dsecond = g.dprefix + (end - 1) * W;
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
GATELOOP_INLINE void inside_gradient(const Chunk& c, ChunkGradient& g, float* through) {
  int K = c.K, W = c.W, half = c.steps / 2;
  for (int l = std::bit_width(unsigned(half)) - 1; half >= 1; half /= 2, --l) {
    const float *decays = c.level(c.decays, l), *weighed = c.level(c.weighed, l);
    g.dweighed.clear();
    for (int begin = 0; begin < c.steps; begin += 2 * half) {
      int middle = begin + half, end = middle + half;
      halves_gradient<COMPLEX>(c, g, begin, half, decays, through);
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
  gates_gradient<COMPLEX>(s.form, s.G, a, COMPLEX ? a + width : nullptr, rest, da,
                          COMPLEX ? da + width : nullptr, out.dfirst + row * s.G,
                          COMPLEX ? out.dsecond + row * s.G : nullptr);
}

template <bool COMPLEX>
GATELOOP_INLINE void store_gradients(const HeadSlab& s, const HeadGradients& out, int begin,
                                     const Chunk& c, ChunkGradient& g) {
  for (int n = 0; n < std::min(c.steps, s.L - begin); ++n) {
    size_t row = s.row(begin + n);
    if (s.live(begin + n)) {
      copy(s.K, g.dq + n * c.K, out.dq + row * s.K);
      copy(s.K, g.dk + n * c.K, out.dk + row * s.K);
      copy(s.V, g.dv + n * c.V, out.dv + row * s.V);
      store_gates_gradient<COMPLEX>(s, out, c.a + n * c.W, c.rest + n * c.K, g.dprefix + n * c.W,
                                    row, c.K);
      continue;
    }
    std::fill_n(out.dq + row * s.K, s.K, 0.0f);
    std::fill_n(out.dk + row * s.K, s.K, 0.0f);
    std::fill_n(out.dv + row * s.V, s.V, 0.0f);
    std::fill_n(out.dfirst + row * s.G, s.G, 0.0f);
    if (COMPLEX) std::fill_n(out.dsecond + row * s.G, s.G, 0.0f);
  }
}

}  // namespace

HeadSlab HeadSlab::of(int b, int h) const {
  HeadSlab slab = *this;
  size_t row = size_t(b) * L * H + h, plane = size_t(K) * V;
  size_t start = (size_t(b) * planes() * H + h) * plane;
  slab.q += row * K;
  slab.k += row * K;
  slab.v += row * V;
  slab.first += row * G;
  if (second) slab.second += row * G;
  if (h0) slab.h0 += start;
  if (mask) slab.mask += size_t(b) * L;
  if (y) {
    slab.y += row * V;
    slab.last += start;
    slab.saved += (size_t(b) * H + h) * (chunks() - 1) * state();
  }
  return slab;
}

HeadGradients HeadGradients::of(int b, int h, const HeadSlab& s) const {
  HeadGradients g = *this;
  size_t row = size_t(b) * s.L * s.H + h, plane = size_t(s.K) * s.V;
  size_t start = (size_t(b) * s.planes() * s.H + h) * plane;
  g.saved += (size_t(b) * s.H + h) * (s.chunks() - 1) * s.state();
  g.dy += row * s.V;
  g.dlast += start;
  g.dq += row * s.K;
  g.dk += row * s.K;
  g.dv += row * s.V;
  g.dfirst += row * s.G;
  if (dsecond) g.dsecond += row * s.G;
  g.dh0 += start;
  return g;
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
      float* to = s.y + s.row(begin + n) * s.V;
      if (s.live(begin + n)) copy(s.V, y + n * c.V, to);
      else std::fill_n(to, s.V, 0.0f);
    }
  }
  store_state(s, c.state, c.K, c.V, s.last, s.H * plane);
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void heads_backward(const HeadSlab& s, const HeadGradients& out) {
  Chunk c(s, true);
  ChunkGradient g(c);
  Rows through(1, c.W);
  size_t plane = size_t(s.K) * s.V;
  load_state(s, out.dlast, s.H * plane, c.K, c.V, g.dstate);
  for (int i = s.chunks() - 1; i >= 0; --i) {
    int begin = i * c.steps;
    load<COMPLEX>(s, begin, c);
    for (int n = 0; n < c.steps; ++n) {
      float* dy = g.dy + n * c.V;
      if (s.live(begin + n)) copy(s.V, out.dy + s.row(begin + n) * s.V, dy);
      else std::fill_n(dy, s.V, 0.0f);
    }
    if (i) load_state(s, out.saved + (i - 1) * s.state(), plane, c.K, c.V, c.state);
    else load_state(s, s.h0, s.H * plane, c.K, c.V, c.state);
    inside<COMPLEX>(c);
    g.clear();
    outside_gradient<COMPLEX>(c, g);
    inside_gradient<COMPLEX>(c, g, through);
    store_gradients<COMPLEX>(s, out, begin, c, g);
    decay_state<COMPLEX>(c, -1, g.dstate);
    multiply(c.W, c.steps, c.V, {c.queries, 1, c.W}, g.dy, g.dstate, c.V);
  }
  store_state(s, g.dstate, c.K, c.V, out.dh0, s.H * plane);
}

template void heads_forward<true>(const HeadSlab&);
template void heads_forward<false>(const HeadSlab&);
template void heads_backward<true>(const HeadSlab&, const HeadGradients&);
template void heads_backward<false>(const HeadSlab&, const HeadGradients&);

}  // namespace gateloop
