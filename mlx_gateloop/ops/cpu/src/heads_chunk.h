// A chunk of the operator with heads.
//
// The chunked form: matrix products inside a chunk, a carried state between chunks. Scores between
// the halves of a block are one product of queries times the decay since the boundary with keys
// times the decay up to it; doubling the blocks from one step to the chunk covers every pair.
// Products of transitions only, never a quotient: resets (a = 0) and underflow need no special
// case.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <new>

#include "heads_kernels.h"
#include "products.h"
#include "vector_math.h"

namespace gateloop {

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

// z = x decay for keys; conjugated for queries, so that a dot product of two z is a real part.
template <bool COMPLEX>
GATELOOP_INLINE void weigh(int n, float sign, const float* __restrict__ x,
                           const float* __restrict__ decay, float* __restrict__ z) {
  for (int j = 0; j < n; ++j) {
    z[j] = x[j] * decay[j];
    if (COMPLEX) z[n + j] = sign * x[j] * decay[n + j];
  }
}

constexpr float kQuery = -1, kKey = 1;

inline int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

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
        levels(keeps_levels ? std::max(1, int(std::bit_width(unsigned(steps))) - 1) : 1),
        transposed(std::max(W, V), keeps_levels || steps > 1 ? std::max(W, steps) : 0) {}

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
  Rows transposed;  // for `dots`

  float* level(const Rows& rows, int l) const {
    return rows + (levels > 1 ? size_t(l) * steps * W : 0);
  }
};

template <bool COMPLEX>
GATELOOP_INLINE void load_gates(const HeadSlab& s, size_t row, int width, float* a, float* rest) {
  float one[kTile], other[kTile];
  for (int j = 0; j < s.G; j += kTile) {
    int n = std::min(kTile, s.G - j);
    gates<COMPLEX>(s.form, n, s.first.read(row * s.G + j, n, one),
                   COMPLEX ? s.second.read(row * s.G + j, n, other) : nullptr, a + j,
                   COMPLEX ? a + width + j : nullptr, rest + j);
  }
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
    s.q.copy(row * s.K, s.K, q);
    s.k.copy(row * s.K, s.K, k);
    s.v.copy(row * s.V, s.V, v);
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

// The states of several heads, carried along the chunks; from null they are zero.
class States {
 public:
  States(const HeadSlab& s, const Chunk& c, int heads, const float* from)
      : s(s), c(c), heads(heads), rows(size_t(heads) * c.W, c.V) {
    for (int h = 0; from && h < heads; ++h)
      load_state(s, from + h * plane, s.H * plane, c.K, c.V, (*this)[h]);
  }
  float* operator[](int h) const { return rows + size_t(h) * c.W * c.V; }
  void store(float* to) const {
    for (int h = 0; h < heads; ++h)
      store_state(s, (*this)[h], c.K, c.V, to + h * plane, s.H * plane);
  }

 private:
  const HeadSlab& s;
  const Chunk& c;
  int heads;
  size_t plane = size_t(s.K) * s.V;
  Rows rows;
};

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

}  // namespace gateloop
