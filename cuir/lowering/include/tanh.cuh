// The hyperbolic tangent.
#pragma once
#include "headers.cuh"
#include "floats.cuh"

namespace cuir {

//@ section numbers

//@ part tanh_small
// tanh(x) for |x| < 0.6: a relative error of 2 units in the last place, where the quotient has an absolute one. The 0 keeps the sign of -0.
DEV float tanh_small(float x) {
  const float u = x * x;
  const float p = fmaf(u, fmaf(u, fmaf(u, 0.0157396831f, -0.0523039624f), 0.133152977f), -0.333327681f);
  return fmaf(x, fmaf(u, p, 0.f), x);
}

//@ part tanh_large needs tanh_small
// tanh(x) from |x| on, given 1 / (1 + exp(2 |x|)); small arguments, and NaN, by the polynomial
DEV float tanh_large(float x, float reciprocal) { return fabsf(x) >= 0.6f ? copysignf(1.f - 2.f * reciprocal, x) : tanh_small(x); }

//@ part tanh needs tanh_large, ex2, reciprocal
DEV float tanh(float x) { return tanh_large(x, reciprocal(1.f + ex2(2.885390081777927f * fabsf(x)))); }

}  // namespace cuir
