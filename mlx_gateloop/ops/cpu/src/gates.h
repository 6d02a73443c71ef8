// The transition of one row from the form in which it is given, and its gradient.
#pragma once

#include "rows.h"

namespace gateloop {

// a from `first` and `second`: sigmoid(gamma) exp(i theta), exp(log|a| + i arg a), re + i im.
enum class Form { sigmoid, polar, cartesian };

// The arrays that an operator reads, from batch 0 on; null for absent ones. h0 is float32.
struct OperatorInputs {
  int L;
  Form form;
  bool reverse;
  Source q, k, v, first, second;
  const float* h0;
  const bool* mask;
};

// The arrays that an operator's gradient reads besides, and those that it writes.
struct OperatorGradients {
  const float *saved, *dlast;
  Source dy;
  Sink dq, dk, dv, dfirst, dsecond;
  float* dh0;
};

// Channels per pass of the kernels: their gates and states fit in the cache.
constexpr int kTile = 512;

// a of n <= kTile channels, and 1 - |a| if the sigmoid's gradient needs it. There is no
// cancellation near |a| = 1, where memory lasts longest: exp of a negative number, and no 1 - x of
// a rounded x.
template <bool COMPLEX>
GATELOOP_INLINE void gates(Form form, int n, const float* first, const float* second, float* re,
                           float* im, float* rest) {
  if (form == Form::cartesian) {
    for (int j = 0; j < n; ++j) re[j] = first[j];
    if (COMPLEX)
      for (int j = 0; j < n; ++j) im[j] = second[j];
    return;
  }
  float magnitude[kTile];
  float* size = COMPLEX ? magnitude : re;
  if (form == Form::sigmoid) {
    for (int j = 0; j < n; ++j) size[j] = expf(-fabsf(first[j]));
    for (int j = 0; j < n; ++j) {
      float e = size[j], small = e / (1 + e), large = 1 - small;
      bool positive = first[j] >= 0;
      size[j] = positive ? large : small;
      rest[j] = positive ? small : large;
    }
  } else {
    for (int j = 0; j < n; ++j) size[j] = expf(first[j]);
  }
  if (COMPLEX) {  // two loops: a joint sincos would not be vectorized
    for (int j = 0; j < n; ++j) re[j] = magnitude[j] * cosf(second[j]);
    for (int j = 0; j < n; ++j) im[j] = magnitude[j] * sinf(second[j]);
  }
}

// The gradients by the planes of a, in place, become those by `first` and `second`.
template <bool COMPLEX>
GATELOOP_INLINE void gates_gradient(Form form, int n, const float* re, const float* im,
                                    const float* rest, float* dre, float* dim) {
  if (form == Form::cartesian) return;
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    float slope = form == Form::sigmoid ? rest[j] : 1;
    float dr = dre[j], di = COMPLEX ? dim[j] : 0;
    dre[j] = slope * (COMPLEX ? dr * re[j] + di * im[j] : dr * re[j]);
    if (COMPLEX) dim[j] = di * re[j] - dr * im[j];
  }
}

}  // namespace gateloop
