// Quotients and square roots: correctly rounded, without a branch; and conversion to integers.
#pragma once
#include "headers.cuh"
#include "floats.cuh"

namespace cuir {

//@ section numbers

//@ part divide_rn needs divide
// Correctly rounded, without a call, which would serialise products. Quotients of floats keep further from what lies between two floats than doubles err.
DEV float divide_rn(float x, float y) {
  const double a = x, b = y;
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
  r = fma(r, fma(-b, r, 1.), r);
  r = fma(r, fma(-b, r, 1.), r);
  double q = a * r;
  q = fma(r, fma(-b, q, a), q);
  return x != 0.f && fabsf(x) < INFINITY && y != 0.f && fabsf(y) < INFINITY ? float(q) : divide(x, y);
}

//@ part to_int
DEV int to_int(float x) { int y; asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }  // saturates, of NaN 0; int(x) need not

//@ part rsqrt
DEV float rsqrt(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }  // of normal numbers

//@ part sqrt needs rsqrt
// Correctly rounded, without a call, which would serialise products: the compiler's own steps, on small numbers times 2^64 so that no residual is lost
DEV float sqrt(float x) {
  const bool small = x < 7.888609052210118e-31f;
  const float a = small ? x * 18446744073709551616.f : x, r = rsqrt(a), s = a * r;
  const float root = fmaf(fmaf(-s, s, a), .5f * r, s);
  return x > 0.f && x < INFINITY ? (small ? root * 2.3283064365386963e-10f : root) : x < 0.f ? NAN : x;
}

//@ part sqrt_of_whole needs rsqrt
// Of 0 and numbers from 1 on nothing is small
DEV float sqrt_of_whole(float x) {
  const float r = rsqrt(x), s = x * r, root = fmaf(fmaf(-s, s, x), .5f * r, s);
  return x != 0.f && x != INFINITY ? root : x;
}

}  // namespace cuir
