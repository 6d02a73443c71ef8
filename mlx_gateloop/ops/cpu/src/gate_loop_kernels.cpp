#include "gate_loop_kernels.h"

#include <algorithm>
#include <memory>

namespace gateloop {

namespace {

// A row of complex numbers, for one tile of channels; without COMPLEX nothing reads or writes `im`.
struct Row {
  float re[kTile], im[kTile];
};

// Copy the planes of a state [planes, D], zero if there is none.
template <bool COMPLEX>
GATELOOP_INLINE void load(int n, const float* state, int D, Row& h) {
  for (int j = 0; j < n; ++j) h.re[j] = state ? state[j] : 0;
  if (COMPLEX)
    for (int j = 0; j < n; ++j) h.im[j] = state ? state[D + j] : 0;
}

template <bool COMPLEX>
GATELOOP_INLINE void store(int n, const Row& h, float* state, int D) {
  std::copy_n(h.re, n, state);
  if (COMPLEX) std::copy_n(h.im, n, state + D);
}

// h = a h + k v; it may be in place.
template <bool COMPLEX>
GATELOOP_INLINE void step(int n, const float* k, const float* v, const Row& a, const Row& before,
                          Row& h) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    float re = before.re[j], im = COMPLEX ? before.im[j] : 0;
    h.re[j] = (COMPLEX ? a.re[j] * re - a.im[j] * im : a.re[j] * re) + k[j] * v[j];
    if (COMPLEX) h.im[j] = a.re[j] * im + a.im[j] * re;
  }
}

// The values of a chunk's steps that the gradient needs: gates, the states before each step and
// after the last one, and 1 - |a|.
struct Chunk {
  Row a[kChunk], h[kChunk + 1];
  float rest[kChunk][kTile];
};

// The gradient of one step. c is conj(a_{n+1}) G_{n+1}, then conj(a_n) G_n; with u = a h_{n-1}
//   G = q dy + c,  dq = dy Re(h),  dk = v Re(G),  dv = k Re(G),
//   dlog|a| = Re(G conj(u)),  dgamma = (1 - |a|) dlog|a|,  dtheta = Im(G conj(u)).
template <bool COMPLEX>
GATELOOP_INLINE void backward_step(Form form, int n, const float* q, const float* k, const float* v,
                                   const float* dy, const Row& a, const Row& before,
                                   const float* rest, Row& c, float* dq, float* dk, float* dv,
                                   float* dfirst, float* dsecond) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    float re = a.re[j], im = COMPLEX ? a.im[j] : 0;
    float pr = before.re[j], pi = COMPLEX ? before.im[j] : 0;
    float ur = COMPLEX ? re * pr - im * pi : re * pr, ui = COMPLEX ? re * pi + im * pr : 0;
    float G = q[j] * dy[j] + c.re[j], Gi = COMPLEX ? c.im[j] : 0;
    dq[j] = dy[j] * (ur + k[j] * v[j]);
    dk[j] = v[j] * G;
    dv[j] = k[j] * G;
    c.re[j] = COMPLEX ? re * G + im * Gi : re * G;
    if (COMPLEX) c.im[j] = re * Gi - im * G;
    if (form == Form::cartesian) ur = pr, ui = pi;  // da = G conj(h_{n-1})
    float radial = COMPLEX ? G * ur + Gi * ui : G * ur;
    dfirst[j] = form == Form::sigmoid ? rest[j] * radial : radial;
    if (COMPLEX) dsecond[j] = Gi * ur - G * ui;
  }
}

}  // namespace

GateLoopSlab GateLoopSlab::of(int b) const {
  GateLoopSlab slab = *this;
  size_t rows = size_t(b) * L * D, state = size_t(b) * planes * D;
  for (Source* x : {&slab.q, &slab.k, &slab.v, &slab.first, &slab.second})
    if (*x) x->skip(rows);
  if (slab.h0) slab.h0 += state;
  if (slab.mask) slab.mask += size_t(b) * L;
  if (slab.y) {
    slab.y.skip(rows);
    slab.last += state;
    slab.saved += state * chunks();
  }
  return slab;
}

GateLoopGradients GateLoopGradients::of(int b, const GateLoopSlab& slab) const {
  GateLoopGradients g = *this;
  size_t rows = size_t(b) * slab.L * slab.D, state = size_t(b) * slab.planes * slab.D;
  for (Sink* x : {&g.dq, &g.dk, &g.dv, &g.dfirst, &g.dsecond})
    if (*x) x->skip(rows);
  g.dy.skip(rows);
  g.saved += state * slab.chunks();
  g.dlast += state;
  g.dh0 += state;
  return g;
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void gate_loop_forward(const GateLoopSlab& s, int d0, int d1) {
  Row a, h;
  float rest[kTile], one[kTile], other[kTile];  // two of the rows, where they are not float32
  for (int d = d0; d < d1; d += kTile) {
    int n = std::min(kTile, d1 - d);
    load<COMPLEX>(n, s.h0 ? s.h0 + d : nullptr, s.D, h);
    for (int t = 0; t < s.L; ++t) {
      size_t o = s.row(t) * s.D + d;
      if (t % kChunk == 0)
        store<COMPLEX>(n, h, s.saved + size_t(t / kChunk) * s.planes * s.D + d, s.D);
      if (!s.live(t)) {
        s.y.clear(o, n);
        continue;
      }
      gates<COMPLEX>(s.form, n, s.first.read(o, n, one),
                     COMPLEX ? s.second.read(o, n, other) : nullptr, a.re, a.im, rest);
      step<COMPLEX>(n, s.k.read(o, n, one), s.v.read(o, n, other), a, h, h);
      const float* q = s.q.read(o, n, one);
      float* y = s.y.row(o, other);
#pragma GCC ivdep
      for (int j = 0; j < n; ++j) y[j] = q[j] * h.re[j];
      s.y.write(o, n, y);
    }
    store<COMPLEX>(n, h, s.last + d, s.D);
  }
}

template <bool COMPLEX>
GATELOOP_MULTIVERSION void gate_loop_backward(const GateLoopSlab& s, const GateLoopGradients& g,
                                              int d0, int d1) {
  auto chunk = std::make_unique_for_overwrite<Chunk>();
  Row c;
  float in[4][kTile], out[5][kTile];  // the rows that are not float32
  const Sink sinks[] = {g.dq, g.dk, g.dv, g.dfirst, g.dsecond};
  for (int d = d0; d < d1; d += kTile) {
    int n = std::min(kTile, d1 - d);
    load<COMPLEX>(n, g.dlast + d, s.D, c);
    for (int i = s.chunks() - 1; i >= 0; --i) {
      int begin = i * kChunk, end = std::min(s.L, begin + kChunk);
      load<COMPLEX>(n, g.saved + size_t(i) * s.planes * s.D + d, s.D, chunk->h[0]);
      for (int t = begin; t < end; ++t) {
        size_t o = s.row(t) * s.D + d;
        int row = t - begin;
        Row &a = chunk->a[row], &before = chunk->h[row], &after = chunk->h[row + 1];
        if (!s.live(t)) {
          std::copy_n(before.re, n, after.re);
          if (COMPLEX) std::copy_n(before.im, n, after.im);
          continue;
        }
        gates<COMPLEX>(s.form, n, s.first.read(o, n, in[0]),
                       COMPLEX ? s.second.read(o, n, in[1]) : nullptr, a.re, a.im,
                       chunk->rest[row]);
        step<COMPLEX>(n, s.k.read(o, n, in[0]), s.v.read(o, n, in[1]), a, before, after);
      }
      for (int t = end - 1; t >= begin; --t) {
        size_t o = s.row(t) * s.D + d;
        if (!s.live(t)) {
          for (int i = 0; i < 4 + COMPLEX; ++i) sinks[i].clear(o, n);
          continue;
        }
        float* to[5];
        for (int i = 0; i < 4 + COMPLEX; ++i) to[i] = sinks[i].row(o, out[i]);
        auto row = t - begin;
        auto run = [&](Form form) __attribute__((always_inline)) {
          backward_step<COMPLEX>(form, n, s.q.read(o, n, in[0]), s.k.read(o, n, in[1]),
                                 s.v.read(o, n, in[2]), g.dy.read(o, n, in[3]), chunk->a[row],
                                 chunk->h[row], chunk->rest[row], c, to[0], to[1], to[2], to[3],
                                 to[4]);
        };
        if (s.form == Form::sigmoid) run(Form::sigmoid);
        else if (s.form == Form::polar) run(Form::polar);
        else run(Form::cartesian);
        for (int i = 0; i < 4 + COMPLEX; ++i) sinks[i].write(o, n, to[i]);
      }
    }
    store<COMPLEX>(n, c, g.dh0 + d, s.D);
  }
}

template void gate_loop_forward<true>(const GateLoopSlab&, int, int);
template void gate_loop_forward<false>(const GateLoopSlab&, int, int);
template void gate_loop_backward<true>(const GateLoopSlab&, const GateLoopGradients&, int, int);
template void gate_loop_backward<false>(const GateLoopSlab&, const GateLoopGradients&, int, int);

}  // namespace gateloop
