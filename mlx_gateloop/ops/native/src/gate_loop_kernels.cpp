#include "gate_loop_kernels.h"

#include <algorithm>
#include <memory>

namespace gateloop {

namespace {

// The rows of a chunk, for one tile of channels.
struct Rows {
  float re[kTile], im[kTile];
};

// The state before the first step.
GATELOOP_INLINE void load(int n, const float* state, int D, Rows& h) {
  for (int j = 0; j < n; ++j) {
    h.re[j] = state ? state[j] : 0;
    h.im[j] = state ? state[D + j] : 0;
  }
}

GATELOOP_INLINE void store(int n, const Rows& h, float* state, int D) {
  for (int j = 0; j < n; ++j) {
    state[j] = h.re[j];
    state[D + j] = h.im[j];
  }
}

GATELOOP_INLINE void copy(int n, const Rows& from, Rows& to) {
  for (int j = 0; j < n; ++j) {
    to.re[j] = from.re[j];
    to.im[j] = from.im[j];
  }
}

// h = a h + k v, in place.
template <bool COMPLEX>
GATELOOP_INLINE void step(int n, const float* k, const float* v, const Rows& a, Rows& h) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    float re = h.re[j], im = h.im[j];
    h.re[j] = (COMPLEX ? a.re[j] * re - a.im[j] * im : a.re[j] * re) + k[j] * v[j];
    h.im[j] = COMPLEX ? a.re[j] * im + a.im[j] * re : a.re[j] * im;
  }
}

void zero(int n, float* row) { std::fill_n(row, n, 0.0f); }

// The values of a chunk's steps that the gradient needs: gates, 1 - |a| and the states before.
struct Chunk {
  Rows a[kChunk], before[kChunk];
  float rest[kChunk][kTile];
};

// The gradient of one step. c is conj(a_{n+1}) G_{n+1}, then conj(a_n) G_n; with u = a h_{n-1}
//   G = q dy + c,  dq = dy Re(h),  dk = v Re(G),  dv = k Re(G),
//   dlog|a| = Re(G conj(u)),  dgamma = (1 - |a|) dlog|a|,  dtheta = Im(G conj(u)).
template <bool COMPLEX>
GATELOOP_INLINE void backward_step(Form form, int n, const float* q, const float* k, const float* v,
                                   const float* dy, const Rows& a, const Rows& before,
                                   const float* rest, Rows& c, float* dq, float* dk, float* dv,
                                   float* dfirst, float* dsecond) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    // Multiplying an infinity by the 0 of a real transition would give NaN.
    float re = a.re[j], pr = before.re[j], pi = before.im[j];
    float ur = COMPLEX ? re * pr - a.im[j] * pi : re * pr;
    float ui = COMPLEX ? re * pi + a.im[j] * pr : re * pi;
    float G = q[j] * dy[j] + c.re[j], Gi = c.im[j];
    dq[j] = dy[j] * (ur + k[j] * v[j]);
    dk[j] = v[j] * G;
    dv[j] = k[j] * G;
    c.re[j] = COMPLEX ? re * G + a.im[j] * Gi : re * G;
    c.im[j] = COMPLEX ? re * Gi - a.im[j] * G : re * Gi;
    if (form == Form::cartesian) {
      dfirst[j] = G * pr + Gi * pi;
      if (COMPLEX) dsecond[j] = Gi * pr - G * pi;
    } else {
      dfirst[j] = (form == Form::sigmoid ? rest[j] : 1) * (G * ur + Gi * ui);
      if (COMPLEX) dsecond[j] = Gi * ur - G * ui;
    }
  }
}

}  // namespace

GateLoopSlab GateLoopSlab::of(int b) const {
  GateLoopSlab slab = *this;
  size_t rows = size_t(b) * L * D, state = size_t(b) * 2 * D;
  for (const float** x : {&slab.q, &slab.k, &slab.v, &slab.first, &slab.second})
    if (*x) *x += rows;
  if (slab.h0) slab.h0 += state;
  if (slab.mask) slab.mask += size_t(b) * L;
  if (slab.y) {
    slab.y += rows;
    slab.last += state;
    slab.saved += state * chunks();
  }
  return slab;
}

GateLoopGradients GateLoopGradients::of(int b, const GateLoopSlab& slab) const {
  GateLoopGradients g = *this;
  size_t rows = size_t(b) * slab.L * slab.D, state = size_t(b) * 2 * slab.D;
  for (float** x : {&g.dq, &g.dk, &g.dv, &g.dfirst, &g.dsecond})
    if (*x) *x += rows;
  g.dy += rows;
  g.saved += state * slab.chunks();
  g.dlast += state;
  g.dh0 += state;
  return g;
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void gate_loop_forward(const GateLoopSlab& s, int d0, int d1) {
  Rows a, h;
  float rest[kTile];
  for (int d = d0; d < d1; d += kTile) {
    int n = std::min(kTile, d1 - d);
    load(n, s.h0 ? s.h0 + d : nullptr, s.D, h);
    for (int t = 0; t < s.L; ++t) {
      size_t o = s.row(t) * s.D + d;
      if (t % kChunk == 0) store(n, h, s.saved + size_t(t / kChunk) * 2 * s.D + d, s.D);
      if (!s.live(t)) {
        zero(n, s.y + o);
        continue;
      }
      gates<COMPLEX>(s.form, n, s.first + o, COMPLEX ? s.second + o : nullptr, a.re, a.im, rest);
      step<COMPLEX>(n, s.k + o, s.v + o, a, h);
      const float* q = s.q + o;
      float* y = s.y + o;
#pragma GCC ivdep
      for (int j = 0; j < n; ++j) y[j] = q[j] * h.re[j];
    }
    store(n, h, s.last + d, s.D);
  }
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void gate_loop_backward(const GateLoopSlab& s, const GateLoopGradients& g,
                                              int d0, int d1) {
  auto chunk = std::make_unique_for_overwrite<Chunk>();
  Rows c, h;
  for (int d = d0; d < d1; d += kTile) {
    int n = std::min(kTile, d1 - d);
    load(n, g.dlast + d, s.D, c);
    for (int i = s.chunks() - 1; i >= 0; --i) {
      int begin = i * kChunk, end = std::min(s.L, begin + kChunk);
      load(n, g.saved + size_t(i) * 2 * s.D + d, s.D, h);
      for (int t = begin; t < end; ++t) {
        if (!s.live(t)) continue;
        size_t o = s.row(t) * s.D + d;
        Rows& a = chunk->a[t - begin];
        gates<COMPLEX>(s.form, n, s.first + o, COMPLEX ? s.second + o : nullptr, a.re, a.im,
                       chunk->rest[t - begin]);
        copy(n, h, chunk->before[t - begin]);
        step<COMPLEX>(n, s.k + o, s.v + o, a, h);
      }
      for (int t = end - 1; t >= begin; --t) {
        size_t o = s.row(t) * s.D + d;
        float* dsecond = COMPLEX ? g.dsecond + o : nullptr;
        if (!s.live(t)) {
          for (float* row : {g.dq + o, g.dk + o, g.dv + o, g.dfirst + o}) zero(n, row);
          if (COMPLEX) zero(n, dsecond);
          continue;
        }
        auto row = t - begin;
        auto run = [&](Form form) __attribute__((always_inline)) {
          backward_step<COMPLEX>(form, n, s.q + o, s.k + o, s.v + o, g.dy + o, chunk->a[row],
                                 chunk->before[row], chunk->rest[row], c, g.dq + o, g.dk + o,
                                 g.dv + o, g.dfirst + o, dsecond);
        };
        if (s.form == Form::sigmoid) run(Form::sigmoid);
        else if (s.form == Form::polar) run(Form::polar);
        else run(Form::cartesian);
      }
    }
    store(n, c, g.dh0 + d, s.D);
  }
}

template void gate_loop_forward<true>(const GateLoopSlab&, int, int);
template void gate_loop_forward<false>(const GateLoopSlab&, int, int);
template void gate_loop_backward<true>(const GateLoopSlab&, const GateLoopGradients&, int, int);
template void gate_loop_backward<false>(const GateLoopSlab&, const GateLoopGradients&, int, int);

}  // namespace gateloop
