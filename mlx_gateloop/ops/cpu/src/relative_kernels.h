// Softmax attention with relative positions, and its gradient, in one head of one batch.
#pragma once

#include <vector>

namespace gateloop {

// The last N of T tokens ask; a head has K keys, A transitions (1 or K) and V values.
struct RelativeSizes {
  int N, T, K, A, V, parts;
  int width() const { return K + parts * A; }
};

struct RelativeRows {
  const float *q, *keys, *v;  // [N, K], [T, K + parts A], [T, V]
  const bool* mask;           // [N, T], or null
};

struct RelativeGradients {
  const float* dy;
  float *dq, *dkeys, *dv;
};

// A thread's memory for a head. Tokens are contiguous in each channel, as loops run over them.
class RelativeHead {
 public:
  explicit RelativeHead(const RelativeSizes& sizes);
  void forward(const RelativeRows& rows, float* y);
  void backward(const RelativeRows& rows, const RelativeGradients& out);

  RelativeSizes s;
  int stride;                          // from a channel to the next
  std::vector<float> k, v, a;          // a: real parts, then imaginary ones
  std::vector<float> decay;            // a_{m+1} ... a_n as n grows
  std::vector<float> w, dw;            // row n of the scores
  std::vector<float> dk, dv, dlog, g;  // g: for keys times decays, both planes

 private:
  void load(const RelativeRows& rows);
};

}  // namespace gateloop
