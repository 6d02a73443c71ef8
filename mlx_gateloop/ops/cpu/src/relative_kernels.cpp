#include "relative_kernels.h"

#include <algorithm>
#include <limits>
#ifdef __SSE__
#include <immintrin.h>
#endif

#include "vector_math.h"

namespace gateloop {

namespace {

// Tokens in a tile: loops run over whole tiles.
constexpr int kTile = 16;
// exp of a smaller number would be denormal.
constexpr float kLowest = -87;

int padded(int n) { return (n + kTile - 1) / kTile * kTile; }

GATELOOP_INLINE float dot(int n, const float* x, const float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int m = 0; m < n; ++m) sum += x[m] * y[m];
  return sum;
}

// From rows [T, width], at one column of them, to a channel and back.
GATELOOP_INLINE void gather(int T, int width, const float* rows, float* x) {
  for (int t = 0; t < T; ++t) x[t] = rows[size_t(t) * width];
}
GATELOOP_INLINE void scatter(int T, int width, const float* x, float* rows) {
  for (int t = 0; t < T; ++t) rows[size_t(t) * width] = x[t];
}

// While it lives, its thread takes denormal numbers for 0: decays end in them, and on x86 they are
// slow.
class WithoutDenormals {
 public:
#ifdef __SSE__
  WithoutDenormals() { _mm_setcsr(before | 0x8040); }
  ~WithoutDenormals() { _mm_setcsr(before); }

 private:
  unsigned before = _mm_getcsr();
#else
  WithoutDenormals() {}
#endif
};

// Multiplies the decays of channel c to token n-1 by a_n; that of token n itself is 1.
template <int PARTS>
GATELOOP_INLINE void advance(RelativeHead& h, int n, int c) {
  int end = padded(n + 1), plane = h.s.A * h.stride;
  float *re = h.decay.data() + c * h.stride, *im = re + plane;
  const float* a = h.a.data() + c * h.stride + n;
  float x = a[0], y = PARTS == 2 ? a[plane] : 0;
#pragma GCC ivdep
  for (int m = 0; m < end; ++m) {
    float r = PARTS == 2 ? re[m] * x - im[m] * y : re[m] * x;
    if (PARTS == 2) im[m] = re[m] * y + im[m] * x;
    re[m] = r;
  }
  re[n] = 1;
  if (PARTS == 2) im[n] = 0;
}

// The decays of the tokens before the first query, to the last of them: one more `advance` is due.
template <int PARTS>
GATELOOP_INLINE void start(RelativeHead& h, int before) {
  std::fill(h.decay.begin(), h.decay.end(), 0.0f);
  for (int c = 0; c < (PARTS ? h.s.A : 0); ++c) {
    int plane = h.s.A * h.stride;
    float *re = h.decay.data() + c * h.stride, *im = re + plane;
    const float* a = h.a.data() + c * h.stride;
    float x = 1, y = 0;
    for (int m = before - 1; m >= 0; --m) {
      re[m] = x;
      if (PARTS == 2) im[m] = y;
      float u = a[m], v = PARTS == 2 ? a[plane + m] : 0, r = x * u - y * v;
      y = x * v + y * u;
      x = r;
    }
  }
}

// A softmax over tokens to n that the mask permits; 0 for the others, and for all if it permits
// none.
GATELOOP_INLINE void softmax(int n, int end, const bool* mask, float* w) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int m = n + 1; m < end; ++m) w[m] = kNever;
  if (mask)
    for (int m = 0; m <= n; ++m) w[m] = mask[m] ? w[m] : kNever;
  float most = kNever, sum = 0;
#pragma omp simd reduction(max : most)
  for (int m = 0; m < end; ++m) most = w[m] > most ? w[m] : most;
  if (most == kNever) most = 0;
#pragma omp simd reduction(+ : sum)
  for (int m = 0; m < end; ++m) {
    float x = w[m] - most;
    w[m] = x < kLowest ? 0 : expf(x < kLowest ? kLowest : x);
    sum += w[m];
  }
  float scale = sum == 0 ? 0 : 1 / sum;
  for (int m = 0; m < end; ++m) w[m] *= scale;
}

template <int PARTS>
GATELOOP_INLINE void weigh(RelativeHead& h, int n, const float* q, const bool* mask) {
  int end = padded(n + 1);
  float* w = h.w.data();
  std::fill_n(w, end, 0.0f);
  for (int c = 0; c < h.s.K; ++c) {
    if (PARTS && c < h.s.A) advance<PARTS>(h, n, c);
    const float *k = h.k.data() + c * h.stride,
                *d = PARTS ? h.decay.data() + (c < h.s.A ? c : 0) * h.stride : nullptr;
    float x = q[c];
#pragma GCC ivdep
    for (int m = 0; m < end; ++m) w[m] += PARTS ? x * k[m] * d[m] : x * k[m];
  }
  softmax(n, end, mask, w);
}

template <int PARTS>
GATELOOP_MULTIVERSION void run_forward(RelativeHead& h, const RelativeRows& rows, float* y) {
  auto& s = h.s;
  int before = s.T - s.N;
  start<PARTS>(h, before);
  for (int i = 0; i < s.N; ++i, y += s.V) {
    int n = before + i, end = padded(n + 1);
    weigh<PARTS>(h, n, rows.q + size_t(i) * s.K, rows.mask ? rows.mask + size_t(i) * s.T : nullptr);
    for (int j = 0; j < s.V; ++j) y[j] = dot(end, h.w.data(), h.v.data() + j * h.stride);
  }
}

// The gradients of the values, and of the scores in h.dw.
GATELOOP_INLINE void of_scores(RelativeHead& h, int end, const float* dy) {
  float *w = h.w.data(), *dw = h.dw.data();
  std::fill_n(dw, end, 0.0f);
  for (int j = 0; j < h.s.V; ++j) {
    float *v = h.v.data() + j * h.stride, *dv = h.dv.data() + j * h.stride, x = dy[j];
#pragma GCC ivdep
    for (int m = 0; m < end; ++m) {
      dw[m] += x * v[m];
      dv[m] += x * w[m];
    }
  }
  float mean = dot(end, w, dw);
  for (int m = 0; m < end; ++m) dw[m] = w[m] * (dw[m] - mean);
}

// The logarithm of a_j gets the sum over n >= j and m < j of each pair's P = dscore q k decay. A
// difference of two sums would cancel. So this holds P for one query and transition; only columns
// before the query's tile are summed over the tile's queries, in g.
struct Products {
  float before[2] = {}, tile[2][kTile] = {};
};

// dlog[m + 1] gets before + p[0] + ... + p[m].
GATELOOP_INLINE void add_sums(int n, float before, const float* p, float* dlog) {
  for (int m = 0; m < n; ++m) dlog[m + 1] += before += p[m];
}

// Adds q dw d to g; returns the sum of dw d k. Without d, of dw k.
template <bool DECAYS>
GATELOOP_INLINE float of_plane(int n, const float* dw, const float* d, const float* k, float q,
                               float* g) {
#pragma GCC ivdep
  for (int m = 0; m < n; ++m) g[m] += DECAYS ? q * dw[m] * d[m] : q * dw[m];
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int m = 0; m < n; ++m) sum += DECAYS ? dw[m] * d[m] * k[m] : dw[m] * k[m];
  return sum;
}

// Adds query n's part of channel c to g and p; returns the gradient of q.
template <int PARTS>
GATELOOP_INLINE float of_channel(RelativeHead& h, int n, int c, float q, Products& p) {
  int tile = n / kTile * kTile;
  const float *dw = h.dw.data(), *k = h.k.data() + c * h.stride;
  float* g = h.g.data() + c * h.stride;
  if (!PARTS) return of_plane<false>(tile + kTile, dw, nullptr, k, q, g);
  float sums[2] = {};
  for (int part = 0; part < PARTS; ++part, g += h.s.K * h.stride) {
    const float* d = h.decay.data() + (part * h.s.A + (c < h.s.A ? c : 0)) * h.stride;
    float before = of_plane<true>(tile, dw, d, k, q, g), sign = part ? -q : q, inside = 0;
    p.before[part] += sign * before;
#pragma omp simd reduction(+ : inside)
    for (int i = 0; i < kTile; ++i) {
      float x = dw[tile + i] * d[tile + i], y = x * k[tile + i];
      inside += y;
      g[tile + i] += q * x;
      p.tile[part][i] += sign * y;
    }
    sums[part] = before + inside;
  }
  return sums[0];
}

// The gradients of query n, as far as they are not left to `close`.
template <int PARTS>
GATELOOP_INLINE void of_query(RelativeHead& h, int n, const float* q, float* dq) {
  int tile = n / kTile * kTile;
  Products p;
  for (int c = 0; c < h.s.K; ++c) {
    dq[c] = of_channel<PARTS>(h, n, c, q[c], p);
    if (!PARTS || (h.s.A == 1 && c < h.s.K - 1)) continue;
    for (int part = 0; part < PARTS; ++part) {
      float* dlog = h.dlog.data() + (part * h.s.A + (c < h.s.A ? c : 0)) * h.stride;
      add_sums(n - tile, p.before[part], p.tile[part], dlog + tile);
    }
    p = {};
  }
}

// Adds the sums in g over the queries of a tile that ends with n.
template <int PARTS>
GATELOOP_INLINE void close(RelativeHead& h, int n) {
  int tile = n / kTile * kTile, end = tile + kTile, K = h.s.K;
  float *p = h.w.data(), *pi = h.dw.data();
  for (int c = 0; c < K; ++c) {
    bool fresh = c == 0 || h.s.A > 1, whole = c == K - 1 || h.s.A > 1;
    if (fresh)
      for (auto* x : {p, pi}) std::fill_n(x, end, 0.0f);
    float *g = h.g.data() + c * h.stride, *gi = g + K * h.stride;
    float *k = h.k.data() + c * h.stride, *dk = h.dk.data() + c * h.stride;
#pragma GCC ivdep
    for (int m = 0; m < end; ++m) {
      dk[m] += g[m];
      if (PARTS) p[m] += k[m] * g[m];
      if (PARTS == 2) pi[m] -= k[m] * gi[m];
      g[m] = 0;
      if (PARTS == 2) gi[m] = 0;
    }
    float* dlog = h.dlog.data() + (c < h.s.A ? c * h.stride : 0);
    if (PARTS && whole) add_sums(tile, 0, p, dlog);
    if (PARTS == 2 && whole) add_sums(tile, 0, pi, dlog + h.s.A * h.stride);
  }
}

template <int PARTS>
GATELOOP_MULTIVERSION void run_backward(RelativeHead& h, const RelativeRows& rows,
                                        const RelativeGradients& out) {
  auto& s = h.s;
  int before = s.T - s.N;
  start<PARTS>(h, before);
  for (auto* x : {&h.dk, &h.dv, &h.dlog, &h.g}) std::fill(x->begin(), x->end(), 0.0f);
  for (int i = 0; i < s.N; ++i) {
    int n = before + i;
    const float* q = rows.q + size_t(i) * s.K;
    weigh<PARTS>(h, n, q, rows.mask ? rows.mask + size_t(i) * s.T : nullptr);
    of_scores(h, padded(n + 1), out.dy + size_t(i) * s.V);
    of_query<PARTS>(h, n, q, out.dq + size_t(i) * s.K);
    if (n % kTile == kTile - 1 || i == s.N - 1) close<PARTS>(h, n);
  }
  int stride = h.stride, width = s.width();
  for (int c = 0; c < s.K; ++c) scatter(s.T, width, h.dk.data() + c * stride, out.dkeys + c);
  for (int c = 0; c < PARTS * s.A; ++c)
    scatter(s.T, width, h.dlog.data() + c * stride, out.dkeys + s.K + c);
  for (int j = 0; j < s.V; ++j) scatter(s.T, s.V, h.dv.data() + j * stride, out.dv + j);
}

GATELOOP_MULTIVERSION void transitions(const RelativeSizes& s, int stride, float* a) {
  int plane = s.A * stride;
  for (int i = 0; i < (s.parts ? plane : 0); ++i) {
    float size = expf(a[i]), turn = s.parts == 2 ? a[plane + i] : 0;
    if (s.parts == 2) a[plane + i] = size * sinf(turn);
    a[i] = s.parts == 2 ? size * cosf(turn) : size;
  }
}

}  // namespace

RelativeHead::RelativeHead(const RelativeSizes& sizes) : s(sizes), stride(padded(s.T)) {
  size_t n = stride, logs = n * s.parts * s.A;
  for (auto* x : {&w, &dw}) x->resize(n);
  for (auto* x : {&k, &dk}) x->resize(n * s.K);
  for (auto* x : {&v, &dv}) x->resize(n * s.V);
  for (auto* x : {&a, &decay, &dlog}) x->resize(logs);
  g.resize(2 * n * s.K);
}

void RelativeHead::load(const RelativeRows& rows) {
  for (int c = 0; c < s.K; ++c) gather(s.T, s.width(), rows.keys + c, k.data() + c * stride);
  for (int c = 0; c < s.parts * s.A; ++c)
    gather(s.T, s.width(), rows.keys + s.K + c, a.data() + c * stride);
  for (int j = 0; j < s.V; ++j) gather(s.T, s.V, rows.v + j, v.data() + j * stride);
  transitions(s, stride, a.data());
}

void RelativeHead::forward(const RelativeRows& rows, float* y) {
  WithoutDenormals fast;
  load(rows);
  (s.parts == 2 ? run_forward<2> : s.parts == 1 ? run_forward<1> : run_forward<0>)(*this, rows, y);
}

void RelativeHead::backward(const RelativeRows& rows, const RelativeGradients& out) {
  WithoutDenormals fast;
  load(rows);
  auto run = s.parts == 2 ? run_backward<2> : s.parts == 1 ? run_backward<1> : run_backward<0>;
  run(*this, rows, out);
}

}  // namespace gateloop
