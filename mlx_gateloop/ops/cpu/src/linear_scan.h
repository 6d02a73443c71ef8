// h_n = a_n h_{n-1} + x_n along axis 1 of float32 planes [B, L, D].
#pragma once

#include "primitive.h"

namespace gateloop {

struct ScanOptions {
  bool complex_a, complex_x, has_h0, reverse;
  bool operator==(const ScanOptions&) const = default;
  // A real a with a complex x is two scans, so here h is real if a is.
  int planes_a() const { return complex_a ? 2 : 1; }
  int planes_x() const { return complex_x ? 2 : 1; }
  int planes_h() const { return planes_a(); }
  int state_planes() const { return has_h0 ? planes_h() : 0; }
};

// Inputs: the planes of a and x [B, L, D], and those of h0 [B, D] if there is one.
// Outputs: the planes of h.
class Scan : public CpuPrimitive<Scan, ScanOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopScan";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  Arrays jvp(const Arrays&, const Arrays&, const std::vector<int>&) override;
  Arrays vjp(const Arrays&, const Arrays&, const std::vector<int>&, const Arrays&) override;
  static Arrays composed(const Arrays& inputs, ScanOptions options, mx::Stream stream);
};

// Inputs: the planes of a, of h, of h0 if there is one, and of the gradient of h.
// Outputs: the gradients of a, x and h0.
class ScanGradient : public CpuPrimitive<ScanGradient, ScanOptions> {
 public:
  using CpuPrimitive::CpuPrimitive;
  static constexpr const char* kName = "GateLoopScanGradient";
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  Work work(const Arrays& inputs, Arrays& outputs);
  static Arrays composed(const Arrays& inputs, ScanOptions options, mx::Stream stream);
};

// The planes of h, for any planes of a and x; h0 is empty or has as many planes as the result.
Arrays linear_scan(const Arrays& a, const Arrays& x, const Arrays& h0, bool reverse);

}  // namespace gateloop
