#include "linear_scan.h"

#include "parallel.h"
#include "vector_math.h"

namespace gateloop {

namespace {

// Whole rows of channels are streamed, and the row of states just written is the state. Tiles of
// channels in registers are slower, as they read memory in short pieces.
template <bool COMPLEX_A, bool COMPLEX_X>
GATELOOP_INLINE void forward_step(int n, const float* ar, const float* ai, const float* xr,
                                  const float* xi, const float* pr, const float* pi, float* hr,
                                  float* hi) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    float real = pr[j], imaginary = COMPLEX_A ? pi[j] : 0;
    hr[j] = (COMPLEX_A ? ar[j] * real - ai[j] * imaginary : ar[j] * real) + xr[j];
    if constexpr (COMPLEX_A) hi[j] = ar[j] * imaginary + ai[j] * real + (COMPLEX_X ? xi[j] : 0);
  }
}

template <bool COMPLEX_A, bool COMPLEX_X>
GATELOOP_MULTIVERSION void forward(int L, int D, int n, bool reverse, const float* ar,
                                   const float* ai, const float* xr, const float* xi,
                                   const float* h0r, const float* h0i, float* hr, float* hi) {
  const float *pr = h0r, *pi = h0i;
  for (int t = 0; t < L; ++t) {
    size_t o = size_t(reverse ? L - 1 - t : t) * D;
    forward_step<COMPLEX_A, COMPLEX_X>(n, ar + o, ai + o, xr + o, xi + o, pr, pi, hr + o, hi + o);
    pr = hr + o;
    pi = hi + o;
  }
}

// With G_n the gradient of h_n along all paths: G_n = dh_n + conj(a_{n+1}) G_{n+1}, dx_n = G_n,
// da_n = conj(h_{n-1}) G_n. c is conj(a_{n+1}) G_{n+1}, finally dh0.
template <bool COMPLEX_A, bool COMPLEX_X>
GATELOOP_INLINE void backward_step(int n, const float* ar, const float* ai, const float* pr,
                                   const float* pi, const float* dhr, const float* dhi, float* dar,
                                   float* dai, float* dxr, float* dxi, float* cr, float* ci) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    float G = dhr[j] + cr[j], Gi = COMPLEX_A ? dhi[j] + ci[j] : 0;
    dxr[j] = G;
    if constexpr (COMPLEX_X) dxi[j] = Gi;
    if constexpr (COMPLEX_A) {
      dar[j] = G * pr[j] + Gi * pi[j];
      dai[j] = Gi * pr[j] - G * pi[j];
      cr[j] = ar[j] * G + ai[j] * Gi;
      ci[j] = ar[j] * Gi - ai[j] * G;
    } else {
      dar[j] = G * pr[j];
      cr[j] = ar[j] * G;
    }
  }
}

template <bool COMPLEX_A, bool COMPLEX_X>
GATELOOP_MULTIVERSION void backward(int L, int D, int n, bool reverse, const float* ar,
                                    const float* ai, const float* hr, const float* hi,
                                    const float* h0r, const float* h0i, const float* dhr,
                                    const float* dhi, float* dar, float* dai, float* dxr,
                                    float* dxi, float* dh0r, float* dh0i) {
  for (int j = 0; j < n; ++j) dh0r[j] = 0;
  if (COMPLEX_A)
    for (int j = 0; j < n; ++j) dh0i[j] = 0;
  ptrdiff_t before = reverse ? D : -D;  // the step before, in the order of the recurrence
  for (int t = L - 1; t >= 0; --t) {
    size_t o = size_t(reverse ? L - 1 - t : t) * D;
    backward_step<COMPLEX_A, COMPLEX_X>(n, ar + o, ai + o, t ? hr + o + before : h0r,
                                        t ? hi + o + before : h0i, dhr + o, dhi + o, dar + o,
                                        dai + o, dxr + o, dxi + o, dh0r, dh0i);
  }
}

// Moves a pointer by `offset`; null stays null.
template <class T>
T* at(T* pointer, size_t offset) {
  return pointer ? pointer + offset : nullptr;
}

auto forward_for(const ScanOptions& o) {
  return o.complex_x ? forward<true, true>
                     : (o.complex_a ? forward<true, false> : forward<false, false>);
}

auto backward_for(const ScanOptions& o) {
  return o.complex_x ? backward<true, true>
                     : (o.complex_a ? backward<true, false> : backward<false, false>);
}

// The planes at `index`; the second is null if there is none.
template <class T>
std::pair<T*, T*> planes(const std::vector<T*>& arrays, int& index, int count) {
  T* first = count > 0 ? arrays[index] : nullptr;
  T* second = count > 1 ? arrays[index + 1] : nullptr;
  index += count;
  return {first, second};
}

// All inputs are [B, L, D], but `count` of them [B, D] from `start` on.
void check_shapes(const Arrays& inputs, size_t start, size_t count) {
  auto& shape = inputs[0].shape();
  require(shape.size() == 3, "linear_scan: planes are [B, L, D]");
  for (size_t i = 1; i < inputs.size(); ++i)
    require(
        inputs[i].shape() == (i - start < count ? mx::Shape{shape[0], shape[2]} : shape),
        "linear_scan: a and x have one shape [B, L, D], h and its gradient too, and h0 is [B, D]");
}

mx::array first_step(const mx::array& x, bool reverse, mx::Stream s) {  // [B, L, D] -> [B, D]
  return mx::take(x, reverse ? x.shape(1) - 1 : 0, 1, s);
}

// The states one step earlier, starting with h0.
mx::array previous(const mx::array& h, const mx::array& h0, bool reverse, mx::Stream s) {
  int L = h.shape(1);
  auto start = mx::expand_dims(h0, 1, s);
  auto rest =
      mx::slice(h, {0, reverse ? 1 : 0, 0}, {h.shape(0), reverse ? L : L - 1, h.shape(2)}, s);
  return reverse ? mx::concatenate({rest, start}, 1, s) : mx::concatenate({start, rest}, 1, s);
}

}  // namespace

std::vector<mx::Shape> Scan::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options.planes_a() + options.planes_x(), options.state_planes());
  return std::vector<mx::Shape>(options.planes_h(), inputs[0].shape());
}

Work Scan::work(const Arrays& inputs, Arrays& outputs) {
  int B = inputs[0].shape(0), L = inputs[0].shape(1), D = inputs[0].shape(2), next = 0;
  auto in = data_of(inputs);
  auto out = data_of(outputs);
  auto [ar, ai] = planes(in, next, options.planes_a());
  auto [xr, xi] = planes(in, next, options.planes_x());
  auto [sr, si] = planes(in, next, options.state_planes());
  auto [hr, hi] = planes(out, next = 0, options.planes_h());
  return [=, options = options] {
    std::vector<float> zero(D);  // if there is no h0
    split_slabs(B, L, D, [&](int b, int d0, int d1) {
      size_t o = size_t(b) * L * D + d0, s = size_t(b) * D + d0;
      forward_for(options)(L, D, d1 - d0, options.reverse, ar + o, at(ai, o), xr + o, at(xi, o),
                           sr ? sr + s : &zero[d0], si ? si + s : &zero[d0], hr + o, at(hi, o));
    });
  };
}

std::vector<mx::Shape> ScanGradient::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, options.planes_a() + options.planes_h(), options.state_planes());
  auto shape = inputs[0].shape();
  std::vector<mx::Shape> shapes(options.planes_a() + options.planes_x(), shape);
  shapes.insert(shapes.end(), options.planes_h(), mx::Shape{shape[0], shape[2]});
  return shapes;
}

Work ScanGradient::work(const Arrays& inputs, Arrays& outputs) {
  int B = inputs[0].shape(0), L = inputs[0].shape(1), D = inputs[0].shape(2), next = 0;
  auto in = data_of(inputs);
  auto out = data_of(outputs);
  auto [ar, ai] = planes(in, next, options.planes_a());
  auto [hr, hi] = planes(in, next, options.planes_h());
  auto [sr, si] = planes(in, next, options.state_planes());
  auto [dhr, dhi] = planes(in, next, options.planes_h());
  auto [dar, dai] = planes(out, next = 0, options.planes_a());
  auto [dxr, dxi] = planes(out, next, options.planes_x());
  auto [d0r, d0i] = planes(out, next, options.planes_h());
  return [=, options = options] {
    std::vector<float> zero(D);  // if there is no h0
    split_slabs(B, L, D, [&](int b, int d0, int d1) {
      size_t o = size_t(b) * L * D + d0, s = size_t(b) * D + d0;
      backward_for(options)(L, D, d1 - d0, options.reverse, ar + o, at(ai, o), hr + o, at(hi, o),
                            sr ? sr + s : &zero[d0], si ? si + s : &zero[d0], dhr + o, at(dhi, o),
                            dar + o, at(dai, o), dxr + o, at(dxi, o), d0r + s, at(d0i, s));
    });
  };
}

// The tangent of h obeys the same recurrence: dh_n = a_n dh_{n-1} + (da_n h_{n-1} + dx_n).
Arrays Scan::jvp(const Arrays& inputs, const Arrays& tangents, const std::vector<int>& argnums) {
  auto s = stream();
  Arrays all = inputs;
  for (auto& x : inputs) all.push_back(mx::zeros_like(x, s));
  for (size_t i = 0; i < argnums.size(); ++i) all[inputs.size() + argnums[i]] = tangents[i];
  all = SameShapes::of(all, s);
  Arrays primals(all.begin(), all.begin() + inputs.size()),
      t(all.begin() + inputs.size(), all.end());
  int n = options.planes_a(), x = n, start = n + options.planes_x();
  auto h = make(primals, options, s);
  auto nothing = mx::zeros_like(first_step(primals[0], options.reverse, s), s);
  Arrays before;
  for (int i = 0; i < n; ++i)
    before.push_back(
        previous(h[i], options.has_h0 ? primals[start + i] : nothing, options.reverse, s));
  Arrays scanned(primals.begin(), primals.begin() + n);
  auto real = mx::add(mx::multiply(t[0], before[0], s), t[x], s);
  if (n == 2) {
    scanned.push_back(mx::subtract(real, mx::multiply(t[1], before[1], s), s));
    auto imaginary = mx::add(mx::multiply(t[0], before[1], s), mx::multiply(t[1], before[0], s), s);
    scanned.push_back(options.complex_x ? mx::add(imaginary, t[x + 1], s) : imaginary);
  } else {
    scanned.push_back(real);
  }
  if (options.has_h0) scanned.insert(scanned.end(), t.begin() + start, t.end());
  auto both = options;
  both.complex_x = options.complex_a;  // da h has two planes even if x has one
  return make(scanned, both, s);
}

Arrays Scan::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                 const Arrays& outputs) {
  Arrays inputs(primals.begin(), primals.begin() + options.planes_a());
  inputs.insert(inputs.end(), outputs.begin(), outputs.end());
  inputs.insert(inputs.end(), primals.begin() + options.planes_a() + options.planes_x(),
                primals.end());
  inputs.insert(inputs.end(), cotangents.begin(), cotangents.end());
  return asked(primals, argnums, ScanGradient::make(inputs, options, stream()));
}

Arrays Scan::composed(const Arrays& inputs, ScanOptions options, mx::Stream stream) {
  return make(inputs, options, stream);  // as its derivatives are written above
}

Arrays ScanGradient::composed(const Arrays& inputs, ScanOptions options, mx::Stream s) {
  int n = options.planes_a(), start = 2 * n, dh = start + options.state_planes();
  bool reverse = options.reverse;
  auto nothing = mx::zeros_like(first_step(inputs[0], reverse, s), s);
  Arrays next, before;  // conj(a_{n+1}) and h_{n-1}
  for (int i = 0; i < n; ++i) {
    auto a = i ? mx::negative(inputs[i], s) : inputs[i];
    next.push_back(previous(a, nothing, !reverse, s));
    before.push_back(
        previous(inputs[n + i], options.has_h0 ? inputs[start + i] : nothing, reverse, s));
  }
  auto scanned = next;
  scanned.insert(scanned.end(), inputs.begin() + dh, inputs.end());
  auto G = Scan::make(scanned, {options.complex_a, options.complex_a, false, !reverse}, s);
  // conj(p) G
  auto product = [&](const Arrays& p, const Arrays& g) -> Arrays {
    if (n == 1) return {mx::multiply(p[0], g[0], s)};
    return {mx::add(mx::multiply(p[0], g[0], s), mx::multiply(p[1], g[1], s), s),
            mx::subtract(mx::multiply(p[0], g[1], s), mx::multiply(p[1], g[0], s), s)};
  };
  auto outputs = product(before, G);
  outputs.insert(outputs.end(), G.begin(), G.begin() + options.planes_x());
  Arrays a_first, G_first;
  for (int i = 0; i < n; ++i) {
    a_first.push_back(first_step(inputs[i], reverse, s));
    G_first.push_back(first_step(G[i], reverse, s));
  }
  auto dh0 = product(a_first, G_first);
  outputs.insert(outputs.end(), dh0.begin(), dh0.end());
  return outputs;
}

Arrays linear_scan(const Arrays& a, const Arrays& x, const Arrays& h0, bool reverse) {
  auto stream = mx::default_stream(mx::Device::cpu);
  bool has_h0 = !h0.empty();
  if (a.size() == 1 && x.size() == 2) {  // a real transition does not mix the planes
    Arrays h;
    for (int i = 0; i < 2; ++i)
      h.push_back(linear_scan(a, {x[i]}, has_h0 ? Arrays{h0[i]} : Arrays{}, reverse)[0]);
    return h;
  }
  Arrays inputs = a;
  inputs.insert(inputs.end(), x.begin(), x.end());
  inputs.insert(inputs.end(), h0.begin(), h0.end());
  return Scan::make(inputs, {a.size() == 2, x.size() == 2, has_h0, reverse}, stream);
}

}  // namespace gateloop
