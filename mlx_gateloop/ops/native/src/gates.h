// The transition of one row from the form in which it is given, and its gradient.
#pragma once

#include "vector_math.h"

namespace gateloop {

// a from `first` and `second`: sigmoid(gamma) exp(i theta), exp(log|a| + i arg a), re + i im.
enum class Form { sigmoid, polar, cartesian };

// The arrays that an operator reads, from batch 0 on; null for absent ones.
struct OperatorInputs {
  int L;
  Form form;
  bool reverse;
  const float *q, *k, *v, *first, *second, *h0;
  const bool* mask;
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

// The gradients by `first` and `second` from those by the planes of a.
template <bool COMPLEX>
GATELOOP_INLINE void gates_gradient(Form form, int n, const float* re, const float* im,
                                    const float* rest, const float* dre, const float* dim,
                                    float* dfirst, float* dsecond) {
#pragma GCC ivdep
  for (int j = 0; j < n; ++j) {
    if (form == Form::cartesian) {
      dfirst[j] = dre[j];
      if (COMPLEX) dsecond[j] = dim[j];
    } else {
      float slope = form == Form::sigmoid ? rest[j] : 1;
      dfirst[j] = slope * (COMPLEX ? dre[j] * re[j] + dim[j] * im[j] : dre[j] * re[j]);
      if (COMPLEX) dsecond[j] = dim[j] * re[j] - dre[j] * im[j];
    }
  }
}

}  // namespace gateloop
